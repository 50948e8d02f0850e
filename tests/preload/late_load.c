/* Loads LIBRARY after the HOGs have taken every byte that the loader keeps for the static
 * thread-local storage of late libraries. Prints which file owns malloc before and after.
 *
 *   late_load LIBRARY HOG... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char* owner(void* function) {
  Dl_info found;
  if (function == NULL || dladdr(function, &found) == 0) return "nobody";
  const char* slash = strrchr(found.dli_fname, '/');
  return slash == NULL ? found.dli_fname : slash + 1;
}

int main(int count, char** words) {
  dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL); /* needs some of that storage, too */
  const char* refused = NULL;
  for (int i = 2; i < count && refused == NULL; ++i) {
    if (dlopen(words[i], RTLD_NOW | RTLD_LOCAL) == NULL) refused = dlerror();
  }
  printf("hogs: %s\n",
         refused != NULL && strstr(refused, "static TLS") ? "no room left" : "room left");
  printf("malloc before: %s\n", owner(dlsym(RTLD_DEFAULT, "malloc")));
  void* library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  printf("library: %s\n", library != NULL ? "loaded" : dlerror());
  if (library == NULL) return 1;
  printf("malloc after: %s\n", owner(dlsym(RTLD_DEFAULT, "malloc")));
  printf("malloc of the library: %s\n", owner(dlsym(library, "malloc")));
  printf("free of the library: %s\n", owner(dlsym(library, "free")));
  return 0;
}
