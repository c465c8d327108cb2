"""The length of C++ functions is found by their braces; each shape here has misled a simpler search."""

import pytest

from tests.function_lengths import FUNCTION_LINES_MAX, long_cpp_functions


def long(head: str, name: str) -> tuple[str, str]:
    return head + " {\n" + "    step();\n" * (FUNCTION_LINES_MAX - 1) + "}\n", name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        long("void f(int a)", "f"),
        long("template <class T>\nauto A::b() const noexcept -> T", "A::b"),
        long("A::A(int a) : a_{a}, b_(a)", "A::A"),
        long("TEST_F(Suite, Name)", "TEST_F(Suite, Name)"),
        long("void g(std::optional<int> a = {}, char b = '{')", "g"),
        long('#define BRACE {\nvoid h(const char* s = R"(})", int big = 1\'000)', "h"),
        long('extern "C" {\nnamespace a::b {\nclass C final : public D<int> {\n    bool operator()(int a)', "operator"),
        long("struct S {\n    std::vector<int> all = {1, 2};\n    int a{0};\n    std::string text() const", "text"),
    ],
)
def test_a_long_function_is_named(text: str, name: str) -> None:
    (complaint,) = long_cpp_functions(text)
    assert f": {name} has " in complaint


@pytest.mark.parametrize(
    "head",
    ["namespace a", "class A : public B<f(1)>", "enum class E : int", "const std::array<int, 9> kTable = ", "union U"],
)
def test_what_is_no_function_may_be_long(head: str) -> None:
    text, _ = long(head, "")
    assert not list(long_cpp_functions(text.replace("step();", "")))


def test_lambdas_count_with_the_function_around_them() -> None:
    lambdas = "    each([&](int i) {\n        use(i);\n    });\n" * (FUNCTION_LINES_MAX // 3)
    assert list(long_cpp_functions("void f() {\n" + lambdas + "}\n"))
