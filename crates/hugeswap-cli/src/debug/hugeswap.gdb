# For gdb on programs under hugeswap run: source this file. (Printed by `hugeswap debug gdb-script`.)
#
# A touch of memory that is not there is a signal, which is hugeswap's business; the program's own faults stop at a
# function of their own ("up" leads to where they were made).
handle SIGSEGV nostop noprint pass
handle SIGBUS nostop noprint pass
handle SIGSYS nostop noprint pass
set breakpoint pending on
break hugeswap_program_fault

python
import gdb

PIECE = 1 << 20


def in_hugeswap(frame):
    if frame.name() == "hugeswap_program_fault":
        return False
    while frame is not None:
        library = gdb.solib_name(frame.pc())
        if library and (library.startswith("/proc/") or "hugeswap" in library):
            return True
        frame = frame.older()
    return False


def choose_thread():
    """Selects a thread that is in no code of hugeswap's: one of those could wait for itself."""
    now = gdb.selected_thread()
    own = [t for t in gdb.selected_inferior().threads() if not (t.name or "").startswith("hs-")]
    for thread in sorted(own, key=lambda t: t is not now):
        thread.switch()
        if not in_hugeswap(gdb.newest_frame()):
            return now
    now.switch()
    raise gdb.GdbError("every thread is in the middle of something of hugeswap's: let the program go on for a moment, and try again")


def evaluate(expression):
    """The value of an expression of C, whatever the program is written in."""
    before = gdb.parameter("language")
    gdb.execute("set language c", to_string=True)
    try:
        return int(gdb.parse_and_eval(expression))
    finally:
        gdb.execute("set language " + before, to_string=True)


def read(address, length):
    """Managed memory, wherever it is."""
    before = choose_thread()
    frame = gdb.selected_frame()
    found = b""
    try:
        while len(found) < length:
            at, n = address + len(found), min(PIECE, length - len(found))
            where = evaluate(
                "((const unsigned char *(*)(unsigned long, unsigned long)) hugeswap_debug_read)(%d, %d)" % (at, n))
            if where == 0:
                raise gdb.GdbError("%#x: no managed memory that can be read" % at)
            found += gdb.selected_inferior().read_memory(where, n).tobytes()
    finally:
        before.switch()
    return found


class Read(gdb.Command):
    """hugeswap-read ADDR LEN [FILE]: managed memory, in memory or in swap, as bytes, or to FILE."""

    def __init__(self):
        super().__init__("hugeswap-read", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, arguments, from_tty):
        words = gdb.string_to_argv(arguments)
        if len(words) not in (2, 3):
            raise gdb.GdbError("hugeswap-read ADDR LEN [FILE]")
        address, length = (int(gdb.parse_and_eval(w)) for w in words[:2])
        found = read(address, length)
        if len(words) == 3:
            with open(words[2], "wb") as file:
                file.write(found)
            return
        for at in range(0, length, 16):
            row = found[at:at + 16]
            text = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
            print("%#x: %-48s %s" % (address + at, row.hex(" "), text))


class BringIn(gdb.Command):
    """hugeswap-bring-in ADDR LEN: has managed memory brought in, so that print and x see it (while the program is stopped)."""

    def __init__(self):
        super().__init__("hugeswap-bring-in", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, arguments, from_tty):
        words = gdb.string_to_argv(arguments)
        if len(words) != 2:
            raise gdb.GdbError("hugeswap-bring-in ADDR LEN")
        address, length = (int(gdb.parse_and_eval(w)) for w in words)
        read(address, length)


Read()
BringIn()
end
