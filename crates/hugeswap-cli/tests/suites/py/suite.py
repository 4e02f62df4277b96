"""Runs one module of CPython's own tests and writes what came of each test.

    suite.py MODULE FILE [TEST...]

FILE gets one line a test, `outcome<TAB>test`, as soon as it is known: a test that ends the process is the one
after the last line. With TESTs only those are run. Without FILE ("-") it only says whether the module is there.
"""

import faulthandler
import importlib
import os
import sys
import tempfile
import unittest

import test.support
from test.support import os_helper


class Outcomes(unittest.TestResult):
    """A line for each test; the worst of its parts counts."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "ok"

    def stopTest(self, test):
        super().stopTest(test)
        self.write(self.outcome, test)

    def write(self, outcome, test):
        self.out.write(f"{outcome}\t{test.id()}\n".encode(errors="replace"))

    def bad(self, outcome, test, error):
        print(f"{outcome}: {test.id()}", self._exc_info_to_string(error, test), sep="\n", flush=True)
        if isinstance(test, unittest.TestCase):
            self.outcome = outcome
        else:
            # setUpClass and its kin, which are no tests: no test of theirs is run.
            self.write(outcome, test)

    def addError(self, test, error):
        self.bad("error", test, error)

    def addFailure(self, test, error):
        self.bad("fail", test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.bad("fail", test, error)

    def addSkip(self, test, reason):
        if isinstance(test, unittest.TestCase):
            if self.outcome == "ok":
                self.outcome = "skip"
        else:
            self.write("skip", test)

    def addExpectedFailure(self, test, error):
        self.outcome = "expected failure"

    def addUnexpectedSuccess(self, test):
        self.outcome = "unexpected success"


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def load(name):
    """The tests of a module. Those of multiprocessing are made by a function, for each way to start a process."""
    try:
        module = importlib.import_module("test." + name)
    except ModuleNotFoundError:
        if not name.startswith("test_multiprocessing_"):
            raise
        # A file, for the processes that are started import it.
        place = tempfile.mkdtemp()
        with open(os.path.join(place, name + ".py"), "w") as f:
            f.write("from test._test_multiprocessing import install_tests_in_module_dict\n")
            f.write(f"install_tests_in_module_dict(globals(), '{name.rpartition('_')[2]}')\n")
        sys.path.insert(0, place)
        os.environ["PYTHONPATH"] = place
        module = importlib.import_module(name)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def main():
    name, file, *only = sys.argv[1:]
    suite = load(name)
    if file == "-":
        return
    if only:
        suite = unittest.TestSuite(t for t in tests_of(suite) if t.id() in only)
    # As CPython's own runner has it.
    faulthandler.enable(all_threads=True)
    # What hangs tells where.
    faulthandler.dump_traceback_later(1790)
    test.support.verbose = False
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    with os_helper.temp_cwd(), os.fdopen(out, "wb", buffering=0) as out:
        suite.run(Outcomes(out))


if __name__ == "__main__":
    main()
