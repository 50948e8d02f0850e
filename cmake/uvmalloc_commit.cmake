# Sets UVMALLOC_COMMIT: from git, else from commit.txt, where `git archive` writes it, else "unknown".
# "-dirty" follows if files differ from the commit.
set(UVMALLOC_COMMIT "")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --abbrev=40 "--exclude=*"
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE UVMALLOC_COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT UVMALLOC_COMMIT)
  file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/commit.txt" UVMALLOC_COMMIT REGEX "^[0-9a-f]+$")
endif()
if(NOT UVMALLOC_COMMIT)
  set(UVMALLOC_COMMIT "unknown")
endif()
