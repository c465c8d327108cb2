"""Comments, docstrings and layout are no code; everything else is."""

import pytest

from tests.claims.code import digest, essence

PYTHON = '''"""What it is."""

class Ring:
    """A ring."""

    size: int = 8

    def put(self, item: str, wait: bool = True) -> int:
        """Put it in."""
        # Nobody may pass.
        return self.size * 2 if wait and item != "full # stop" else 0
'''
C = """// What it is.
#include <cstdint>
#define KVFIX_ROUNDS(n) ((n) * 2)
constexpr char kAddress[] = "http://host/*";  // no comment within
constexpr auto kRaw = R"x(a" // b)x";
constexpr char kQuote = '"';
std::int64_t put(std::int64_t item, bool wait = true) {
    /* Nobody
       may pass. */
    return wait && item != 1'000 ? item * 2 : 0;  // it's enough
}
"""
BINDING = 'pool.def_prop_ro("bytes", &Pool::bytes, "Mapped.");'
CMAKE = """# Fast.
target_compile_options(core PRIVATE -O3 "-DNAME=#1")  # as others do
"""

SAME = [
    ("a.py", PYTHON, "# Nobody may pass.", "# Nobody at all."),
    ("a.py", PYTHON, "        # Nobody may pass.\n", ""),
    ("a.py", PYTHON, '"""What it is."""', ""),
    ("a.py", PYTHON, '"""A ring."""', '"""Of slots.\n\n    And more.\n    """'),
    ("a.py", PYTHON, '"""Put it in."""', "pass"),
    ("a.py", PYTHON, "(self, item: str, wait: bool = True)", "(\n        self, item: str, wait: bool = True,\n    )"),
    ("a.py", PYTHON, '"full # stop"', "'full ' '# stop'"),
    ("a.cc", C, "// What it is.\n", ""),
    ("a.cc", C, "// no comment within", "// how it is \\\n told"),
    ("a.cc", C, "/* Nobody\n       may pass. */", ""),
    ("a.cc", C, "(std::int64_t item, bool wait = true) {", "(\n    std::int64_t item,\n    bool wait=true)\n{"),
    ("a.cc", C, '"http://host/*"', '"http://"\n    "host/*"'),
    ("a.cc", C, "it's enough", "it's not"),
    ("a.h", C, "((n) * 2)", "\\\n    ((n) * 2)  // twice"),
    ("cpp/bindings/a.cc", BINDING, "Mapped.", 'The pool\'s"\n    " bytes.'),
    ("core.cmake", CMAKE, "# Fast.\n", ""),
    ("core.cmake", CMAKE, "  # as others do", ""),
]
OTHER = [
    ("a.py", PYTHON, "* 2", "* 3"),
    ("a.py", PYTHON, "* 2", "** 2"),
    ("a.py", PYTHON, "full # stop", "full # stops"),
    ("a.py", PYTHON, "wait: bool = True", "wait: bool = False"),
    ("a.py", PYTHON, "-> int", "-> float"),
    ("a.py", PYTHON, "else 0", "else 0.0"),
    ("a.py", PYTHON, "else 0", "else None"),
    ("a.py", PYTHON, "        return", "        yield"),
    ("a.cc", C, "* 2 : 0", "* 3 : 0"),
    ("a.cc", C, "&&", "||"),
    ("a.cc", C, "1'000", "1'001"),
    ("a.cc", C, "http://host/*", "http://other/*"),
    ("a.cc", C, '" // b', '" // c'),
    ("a.cc", C, '" // b', '" //  b'),
    ("a.cc", C, "'\"'", "'\\''"),
    ("a.cc", C, "wait = true", "wait = false"),
    ("a.cc", C, "((n) * 2)", "((n) * 3)"),
    ("a.cc", C, "ROUNDS(n)", "ROUNDS (n)"),
    ("a.cc", C, "<cstdint>\n#define", "<cstdint>\n#undef"),
    ("a.cc", C, "(n) * 2)\n", "(n) * 2) "),
    ("a.cc", C, "item * 2", "item + +2"),
    ("cpp/bindings/a.cc", BINDING, '"bytes"', '"octets"'),
    ("a.cc", BINDING, "Mapped.", "Unmapped."),
    ("core.cmake", CMAKE, "-O3", "-O2"),
    ("core.cmake", CMAKE, "#1", "#2"),
    ("page.css", "a { b: c; } /* d */", "d", "e"),
]


def planted(name: str, text: str, old: str, new: str) -> tuple[bytes, bytes]:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return essence(name, text.encode()), essence(name, text.replace(old, new).encode())


@pytest.mark.parametrize(("name", "text", "old", "new"), SAME)
def test_what_only_people_read_is_no_change(name: str, text: str, old: str, new: str) -> None:
    before, after = planted(name, text, old, new)
    assert before == after


@pytest.mark.parametrize(("name", "text", "old", "new"), OTHER)
def test_what_the_machine_reads_is_a_change(name: str, text: str, old: str, new: str) -> None:
    before, after = planted(name, text, old, new)
    assert before != after


def test_two_operators_are_not_one() -> None:
    assert essence("a.cc", b"a + +b") != essence("a.cc", b"a ++ b")
    assert essence("a.cc", b"a++ + b") == essence("a.cc", b"a ++\n+b")


def test_a_raw_literal_stays_as_it_is() -> None:
    assert essence("a.cc", b'auto a = R"(b"\n"c)";') != essence("a.cc", b'auto a = R"(bc)";')


def test_a_digest_does_not_depend_on_the_python_that_makes_it() -> None:
    """Digests are kept. Should this fail on another Python, trees.json says there that everything has changed."""
    text = PYTHON + '\n\ndef told(*a: int, b: str = f"{1!r:>{2}}", **c: object) -> None:\n    print({**c}, a[1:], b)\n'
    assert digest({"a.py": essence("a.py", text.encode())}) == "4123f56cdf9f03bfe917"
