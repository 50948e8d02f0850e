"""The command as a parent: signals, terminals, and the environment that the program gets."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from uvmalloc._cli import launch
from uvmalloc._cli.environment import with_uvmalloc

UVMALLOC = (sys.executable, "-m", "uvmalloc")
RUN = (*UVMALLOC, "run", "--no-report", "--", sys.executable, "-c")
FORWARDED = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGTERM",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGVTALRM",
    "SIGPROF",
    "SIGPIPE",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
    "SIGURG",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGABRT",
    "SIGSEGV",
    "SIGRTMIN",
    "SIGRTMAX",
]
# Prints the signals that it gets, until its standard input ends.
LISTENER = """
import os, signal, sys
names = sys.argv[1:]
for name in names:
    number = getattr(signal, name)
    signal.signal(number, lambda *_, name=name: os.write(1, f"got {name}\\n".encode()))
os.write(1, b"ready\\n")
while os.read(0, 1):
    pass
sys.exit(7)
"""


@contextmanager
def launched(
    environment: dict[str, str], program: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*RUN, program, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        # A failure in this block leaves programs that nothing else ends.
        end = threading.Timer(60, os.killpg, (process.pid, signal.SIGKILL))
        end.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            end.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", FORWARDED)
def test_every_signal_is_passed_on_and_kills_neither(clean_environment, name):
    with launched(clean_environment, LISTENER, name) as process:
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline() == f"got {name}\n"
        process.stdin.close()
        assert process.wait(timeout=30) == 7


def test_a_timer_that_is_set_before_runs_out_in_the_program(clean_environment):
    """Like `perl -e 'alarm 1; exec @ARGV' uvmalloc run ...`."""
    command = [*UVMALLOC, "run", "--no-report", "--", "sleep", "60"]
    text = "import os, signal, sys; signal.alarm(8); os.execvp(sys.argv[1], sys.argv[1:])"
    finished = subprocess.run([sys.executable, "-c", text, *command], env=clean_environment)
    assert finished.returncode == 128 + signal.SIGALRM


def test_a_parent_that_ignores_the_ends_of_children_changes_nothing(clean_environment):
    command = [*UVMALLOC, "run", "--no-report", "--", "sh", "-c", "exit 5"]
    finished = subprocess.run(
        command,
        env=clean_environment,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert finished.returncode == 5


# ---- at a terminal ------------------------------------------------------------------------------


class Terminal:
    """A program that leads the session of a terminal."""

    def __init__(self, environment: dict[str, str], *command: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [*command], environment)
        self._text = ""

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def wait_for(self, text: str) -> None:
        while text not in self._text:
            assert select.select([self._end], [], [], 60)[0], f"only: {self._text}"
            self._text += os.read(self._end, 4096).decode()

    def count(self, text: str) -> int:
        return self._text.count(text)

    def read_to_the_end(self) -> int:
        """Reads all output and returns the exit code."""
        try:
            while data := os.read(self._end, 4096):
                self._text += data.decode()
        except OSError:  # on Linux: nobody has the terminal any more
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def terminal(clean_environment) -> Iterator[type]:
    opened: list[Terminal] = []

    def make(*command: str) -> Terminal:
        opened.append(Terminal(clean_environment, *command))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_a_key_that_interrupts_reaches_the_program_once(terminal):
    shell = terminal(*RUN, LISTENER, "SIGINT", "SIGQUIT")
    shell.wait_for("ready")
    shell.type(b"\x03")
    shell.wait_for("got SIGINT")
    shell.type(b"\x1c")
    shell.wait_for("got SIGQUIT")
    shell.type(b"\x04")
    assert shell.read_to_the_end() == 7
    assert (shell.count("got SIGINT"), shell.count("got SIGQUIT")) == (1, 1)


def test_a_program_in_a_group_of_its_own_gets_the_key_through_us(terminal):
    shell = terminal(*RUN, "import os; os.setpgid(0, 0)\n" + LISTENER, "SIGINT", "SIGTTIN")
    shell.wait_for("ready")
    shell.type(b"\x03")
    shell.wait_for("got SIGINT")
    os.kill(shell.pid, signal.SIGKILL)


# Runs a job in the foreground, like a shell: in its own group, which continues after a stop.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    state = os.waitid(os.P_PID, job, os.WEXITED | os.WSTOPPED)
    if state.si_code == os.CLD_EXITED:
        sys.exit(state.si_status)
    print("job stopped", flush=True)
    os.killpg(job, signal.SIGCONT)
"""


def test_a_key_that_suspends_stops_both_and_they_go_on_together(terminal):
    shell = terminal(sys.executable, "-c", SHELL, *RUN, LISTENER)
    shell.wait_for("ready")
    shell.type(b"\x1a")
    shell.wait_for("job stopped")
    shell.type(b"\x04")
    assert shell.read_to_the_end() == 7
    assert shell.count("job stopped") == 1


def test_a_terminal_that_hangs_up_is_noticed_by_the_program(terminal, tmp_path):
    note = tmp_path / "note"
    program = f"""
import os, pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.write(1, b"ready")
signal.sigwait([signal.SIGHUP])
pathlib.Path({str(note)!r}).write_text("hung up")
"""
    shell = terminal(*RUN, program)
    shell.wait_for("ready")
    os.close(shell._end)
    shell._end = os.open(os.devnull, os.O_RDONLY)
    assert os.waitstatus_to_exitcode(os.waitpid(shell.pid, 0)[1]) == 0
    assert note.read_text() == "hung up"


def test_the_end_of_a_program_is_seen_in_a_process_of_several_threads(clean_environment):
    """SIGCHLD comes before a thread waits for it, and the kernel gives it to the other thread."""
    text = f"""
import os, threading
from uvmalloc._cli import launch
threading.Thread(target=threading.Event().wait, daemon=True).start()
start = launch._start
def start_and_see_the_end(*arguments):
    pid = start(*arguments)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
launch._start = start_and_see_the_end
assert launch.launch(["true"], {dict(clean_environment)!r}).exit_code == 0
"""
    subprocess.run([sys.executable, "-c", text], env=clean_environment, check=True, timeout=20)


def state_of(pid: int) -> str:
    """Returns the state of a process as proc(5) abbreviates it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stop_of_the_launcher_alone_changes_nothing(clean_environment):
    with subprocess.Popen(
        [*UVMALLOC, "run", "--", "sh", "-c", "echo ready; read line; exit 7"],
        env=clean_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # The stop begins while the launcher waits, and outlasts the time between two checks.
        for _ in range(2):
            while state_of(process.pid) != "S":
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(launch._LOOK_SECONDS)
            os.kill(process.pid, signal.SIGCONT)
            os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        _, said = process.communicate("\n", timeout=60)
    assert (process.returncode, "error" in said) == (7, False), said
    assert "uvmalloc" in said  # the report


def test_a_failure_of_the_launcher_is_named_and_leaves_no_program(clean_environment, tmp_path):
    note = tmp_path / "pid"
    text = f"""
import errno, os, sys, time
from uvmalloc._cli import launch
from uvmalloc._cli.main import main
def take(program, received):
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
launch._Program.take = take
program = "echo $$ > '{note}'; (sleep 0.1; kill -CHLD $PPID) & exec sleep 60"
sys.exit(main(["run", "--no-report", "--", "sh", "-c", program]))
"""
    finished = subprocess.run(
        [sys.executable, "-c", text], env=clean_environment, stderr=subprocess.PIPE, text=True,
        timeout=20, check=False,
    )  # fmt: skip
    said = "uvmalloc: error: cannot wait for sh: Invalid argument\n"
    assert (finished.returncode, finished.stderr) == (1, said)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


# ---- sanitizers ---------------------------------------------------------------------------------


def test_sanitizers_stay_first_among_what_is_preloaded(libraries):
    ours = str(libraries.uvmalloc)
    asan, clang = "/usr/lib/gcc/12/libasan.so", "/opt/llvm/libclang_rt.tsan-x86_64.so"
    for names in (asan, clang, f"/usr/lib/libubsan.so.1 {asan}.8.0.0"):
        made = with_uvmalloc({"LD_PRELOAD": f"a.so {names} libasan_like.txt"}, libraries, {}, None)
        expected = [*names.split(), ours, "a.so", "libasan_like.txt"]
        assert made["LD_PRELOAD"] == ":".join(expected)
        assert with_uvmalloc(made, libraries, {}, None) == made


@pytest.mark.parametrize("command", ["run", "sim"])
def test_a_program_under_a_preloaded_sanitizer_runs(clean_environment, command):
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = Path(found.stdout.strip())
    assert runtime.is_absolute(), "this gcc has no AddressSanitizer"
    finished = subprocess.run(
        [*UVMALLOC, command, "--no-report", "--", "echo", "fine"],
        env={**clean_environment, "LD_PRELOAD": str(runtime), "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "fine\n", "")
