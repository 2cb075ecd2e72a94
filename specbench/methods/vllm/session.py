"""The processes of a session, from /proc: what vLLM's processes hold, and whether any is left."""

from pathlib import Path

PROC = Path("/proc")
_SESSION_FIELD = 3  # of what follows the command in /proc/<pid>/stat: state, parent, group, session


def session_processes(session: int) -> list[int]:
    """Process ids of the session, zombies left out; none where there is no /proc."""
    found = []
    for entry in PROC.glob("[0-9]*"):
        try:
            after = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(after[_SESSION_FIELD]) == session and after[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def session_memory(session: int) -> int | None:
    """Sum of the processes' highest resident sets in bytes; None where it is unknown."""
    total = 0
    for pid in session_processes(session):
        try:
            lines = (PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return total or None
