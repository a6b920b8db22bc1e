from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

import kdp
from kdp import ConfigurationError, DeviceBackend
from kdp.command.targets import Recipe, assign, load
from kdp.daemon.setting import GivenValue
from kdp.daemon.signals import Stopped
from kdp.hardware import Host

WIDGETS = """
from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING

import kdp
from kdp.hardware import Host

if TYPE_CHECKING:
    from acme_missing import Decimal

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, path: Path, count: int = 1, *, host: Host, price: Decimal | None = None) -> None:
        if count < 0:
            raise ValueError("count is negative")
        self.path, self.count, self.host = path, count, host

    def discover(self) -> list[kdp.Device]:
        return []

class Gadgets(kdp.DeviceBackend):
    def __init__(self, count: int = 1, **more: str) -> None:
        self.more = more

    def discover(self) -> list[kdp.Device]:
        return []

class Plain(kdp.DeviceBackend):
    class Inner(kdp.DeviceBackend):
        def discover(self) -> list[kdp.Device]:
            return []

    def discover(self) -> list[kdp.Device]:
        return []

class Picky(Plain):
    def __init__(self, resource: str) -> None:
        raise kdp.ConfigurationError(f"resource {resource!r} has no domain")

class Silent(kdp.DeviceBackend):
    pass

class Half(Plain):
    @abc.abstractmethod
    def prepare(self) -> None: ...

class Other:
    def discover(self) -> list[kdp.Device]:
        return []

number = 3
"""
HOST = Host(Path("/host"))
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module into the working directory; what it leaves in the interpreter is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write(text: str = WIDGETS, name: str = "widgets_for_a_test.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_class_of_a_module_in_the_working_directory(write: Write) -> None:
    write()
    assert load("widgets_for_a_test:Plain").__name__ == "Plain"
    assert load("widgets_for_a_test:Plain.Inner").__qualname__ == "Plain.Inner"


def test_a_class_of_a_file_that_imports_its_neighbour(write: Write) -> None:
    write()
    path = write("from widgets_for_a_test import Plain\n", "neighbour_for_a_test.py")
    assert load(f"{path}:Plain").__name__ == "Plain"
    assert load("./neighbour_for_a_test.py:Plain").__name__ == "Plain"


def test_an_installed_entry_point(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    point = importlib.metadata.EntryPoint("widgets", "widgets_for_a_test:Plain", "kdp.backends")
    broken = importlib.metadata.EntryPoint("broken", "widgets_for_a_test:Nothing", "kdp.backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [point, broken])
    sys.path.append(".")
    assert load("widgets").__name__ == "Plain"
    with pytest.raises(ConfigurationError, match=r"'broken': loading it failed with AttributeError: module"):
        load("broken")
    with pytest.raises(ConfigurationError, match=r"installed in group kdp.backends: broken, widgets"):
        load("gadgets")


EXPECTED = "expected module:Class, path/file.py:Class or the name of an entry point in group kdp.backends"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nothing", "no such entry point (installed in group kdp.backends: "),
        ("widgets_for_a_test.py", "names no class; expected widgets_for_a_test.py:Class"),
        ("no_such_module:X", "there is no module 'no_such_module' (looked in the installed packages and in "),
        ("none.py:X", f"the file none.py does not exist; {EXPECTED}"),
        (
            "widgets_for_a_test:Wodgets",
            "widgets_for_a_test has no 'Wodgets'; the backends in it: Widgets, Gadgets, Plain, Picky, Silent, Half",
        ),
        ("widgets_for_a_test:number", "this is an object of type int; expected a subclass of kdp.DeviceBackend"),
        ("widgets_for_a_test:Silent", "Silent has no discover(); expected is a method that returns the devices"),
        ("widgets_for_a_test:Half", "Half is abstract and lacks prepare; expected a complete class"),
    ],
)
def test_a_target_that_is_no_backend_is_told_what_was_found_and_expected(
    write: Write, target: str, sentence: str
) -> None:
    write()
    with pytest.raises(ConfigurationError) as caught:
        load(target)
    assert str(caught.value).startswith(f"target {target!r}: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library' ({path}, line 1)"),
        ("x = 1\nraise ValueError('boom')", "ValueError: boom ({path}, line 2)"),
        ("def f(:", "SyntaxError: invalid syntax (failing_for_a_test.py, line 1)"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E ({path}, line 3)"),
    ],
)
def test_a_module_that_fails_is_told_with_its_place(write: Write, text: str, sentence: str) -> None:
    form = "failing_for_a_test.py:X"
    path = write(text, "failing_for_a_test.py")

    with pytest.raises(ConfigurationError) as caught:
        load(form)
    assert str(caught.value) == f"target {form!r}: loading it failed with {sentence.format(path=path)}"


def test_a_module_that_calls_run_is_told_where_to_put_that(write: Write) -> None:
    write(WIDGETS + "\nkdp.run(Plain())\n")
    with pytest.raises(ConfigurationError, match=r"calls kdp\.run while it is loaded; expected that call under"):
        load("widgets_for_a_test.py:Plain")


def given(**values: object) -> dict[str, GivenValue]:
    return {name: GivenValue(f"--set {name}", value) for name, value in values.items()}


def loaded(write: Write, *names: str) -> dict[str, type[DeviceBackend]]:
    write()
    return {name: load(f"widgets_for_a_test:{name}") for name in names}


def test_values_are_converted_and_the_host_is_handed_in(write: Write) -> None:
    (recipe,) = assign(loaded(write, "Widgets"), given(path="/dev/x", count="3"), host=HOST)
    backend: Any = recipe.make()
    assert (backend.path, backend.count, backend.host) == (Path("/dev/x"), 3, HOST)


def test_a_value_goes_to_every_target_that_has_the_parameter(write: Write) -> None:
    recipes = assign(loaded(write, "Widgets", "Gadgets", "Plain"), given(path="x", count="3"), host=HOST)
    assert [dict(recipe.arguments) for recipe in recipes] == [
        {"path": Path("x"), "count": 3, "host": HOST},
        {"path": "x", "count": 3},  # it takes what it is given
        {},
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_value_for_one_target_goes_there_only_and_before_one_for_all(write: Write, order: int) -> None:
    """Two backends of one process may have parameters of the same name, as the modes of FPGAs and of RDMA adapters."""
    classes = loaded(write, "Widgets", "Gadgets")
    values = {"count": "3", "path": "x", "widgets_for_a_test:Widgets.count": "4"}
    classes = {f"widgets_for_a_test:{name}": cls for name, cls in classes.items()}
    recipes = assign(classes, given(**dict([*values.items()][::order])), host=HOST)
    assert [recipe.arguments["count"] for recipe in recipes] == [4, 3]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"path": "x", "count": "many"},
            "--set count: 'many' does not fit; Widgets expects a whole number (int); for example",
        ),
        ({"cunt": "1"}, "--set cunt: there is no parameter 'cunt'; Widgets has path, count, price"),
        (
            {},
            "target 'Widgets': Widgets needs the parameter 'path'; expected --set path=VALUE with a path; for example",
        ),
        (
            {"path": "x", "price": "3"},
            "--set price: the annotation 'Decimal | None' of this parameter of Widgets cannot be resolved; expected a",
        ),
    ],
)
def test_values_that_do_not_fit_are_told(write: Write, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        assign(loaded(write, "Widgets"), given(**values), host=HOST)
    assert str(caught.value).startswith(sentence)


def test_a_constructor_that_raises_is_told_with_its_arguments(write: Write) -> None:
    (recipe,) = assign(loaded(write, "Widgets"), given(path="x", count="-1"), host=HOST)
    with pytest.raises(ConfigurationError) as caught:
        recipe.make()
    assert "Widgets(path=PosixPath('x'), count=-1) failed with ValueError: count is negative (" in str(caught.value)


GUARDED = """
import dataclasses
import kdp

@dataclasses.dataclass
class Login:
    password: str

    def __post_init__(self):
        raise ValueError(f"no {self.password}")

class X(kdp.DeviceBackend):
    def __init__(self, token: str = "", pin: int = 0, credentials: Login = None, secret=None, cookie=None, url=""):
        if secret:
            raise kdp.ConfigurationError(f"bad {secret}")
        int(token or "0")

    def discover(self):
        return []
"""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"token": ["Kx9-hunter2"]}, "--set token: ['***'] does not fit; X expects text (str)"),
        ({"pin": "Kx9-hunter2"}, "--set pin: '***' does not fit; X expects a whole number (int); for example 4"),
        ({"credentials": {"password": "Kx9-hunter2"}}, "(no ***)"),
        (
            {"token": "Kx9-hunter2"},
            "X(token='***') failed with ValueError: invalid literal for int() with base 10: '***'",
        ),
        ({"secret": "Kx9-hunter2"}, "target 'x': bad ***"),
        ({"token": "x", "cookie": {"a": ["Kx9-hunter2"]}}, "cookie={'a': ['***']}"),
        ({"token": "x", "url": "https://me:Kx9-hunter2@h"}, "url='https://me:***@h'"),
    ],
)
def test_a_refused_value_showed_the_secret(write: Write, values: dict[str, object], sentence: str) -> None:
    write(GUARDED)
    targets = {"x": load("widgets_for_a_test:X")}
    with pytest.raises(ConfigurationError) as caught:
        assign(targets, given(**values), host=HOST)[0].make()
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "failure"),
    [
        ("raise SystemExit(7)", "SystemExit: 7"),
        ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()", "E"),
    ],
)
def test_a_constructor_ends_nothing_and_needs_no_words(write: Write, statement: str, failure: str) -> None:
    path = write(
        f"import kdp\nclass X(kdp.DeviceBackend):\n    def __init__(self): {statement}\n    def discover(self): ...\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        Recipe("x", load("widgets_for_a_test.py:X"), {}).make()
    assert str(caught.value) == f"target 'x': X() failed with {failure} ({path}, line 3)"


def test_who_ends_the_command_ends_it_in_a_constructor_too() -> None:
    end: type[BaseException] = Stopped

    class Interrupted(kdp.DeviceBackend):
        def __init__(self) -> None:
            raise end

        @override
        def discover(self) -> list[kdp.Device]:
            return []

    with pytest.raises(end):
        Recipe("x", Interrupted, {}).make()


UNTYPED = """
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import kdp

if TYPE_CHECKING:
    from kdp.hardware import Host
    from no_such_module import Nothing

@dataclasses.dataclass
class Limits:
    watts: int = 3

class Widgets(kdp.DeviceBackend):
    def __init__(
        self,
        host: Host,
        n=4,
        ratio=0.5,
        flag=False,
        folder=Path("/"),
        names=("a",),
        numbers=[1],
        limits: Limits = Limits(),
    ):
        self.held = host, n, ratio, flag, folder, names, numbers, limits

    def discover(self):
        return []

class Lost(Widgets):
    def __init__(self, host: Nothing):
        pass
"""


def test_a_host_that_is_imported_for_type_checkers_only_was_no_type(write: Write) -> None:
    write(UNTYPED.replace("    from no_such_module import Nothing\n", "").replace("Nothing", "Unknown"))
    cls = load("widgets_for_a_test:Widgets")
    (recipe,) = assign({"w": cls}, {}, host=HOST)
    assert cast("Any", recipe.make()).held[0] is HOST
    with pytest.raises(ConfigurationError) as refused:
        assign({"w": load("widgets_for_a_test:Lost")}, {}, host=HOST)
    assert "the annotation 'Unknown' of the parameter 'host' of Lost cannot be resolved; import its type" in str(
        refused.value
    )


def test_an_import_for_type_checkers_that_fails_ends_nothing(write: Write) -> None:
    write(UNTYPED)
    with pytest.raises(ConfigurationError, match="the annotation 'Host' of the parameter 'host' of Widgets cannot"):
        assign({"w": load("widgets_for_a_test:Widgets")}, {}, host=HOST)


def test_a_parameter_without_an_annotation_took_any_text(write: Write) -> None:
    write(UNTYPED.replace("    from no_such_module import Nothing\n", ""))
    targets = {"w": load("widgets_for_a_test:Widgets")}
    values = {
        "n": "5",
        "ratio": "2",
        "flag": "yes",
        "folder": "/x",
        "names": "b,c",
        "numbers": "2,3",
        "limits": '{"watts": 5}',
    }
    (recipe,) = assign(targets, given(**values), host=HOST)
    held = cast("Any", recipe.make()).held
    assert held[1:7] == (5, 2.0, True, Path("/x"), ("b", "c"), [2, 3])
    assert held[7].watts == 5
    with pytest.raises(ConfigurationError, match=r"'five' does not fit; Widgets expects a whole number \(int\)"):
        assign(targets, given(n="five"), host=HOST)


def renamed(**options: str) -> dict[str, type[DeviceBackend]]:
    class Cards(DeviceBackend):
        renamed_options = options

        def __init__(self, ecc_limit: int = 3) -> None:
            self.ecc_limit = ecc_limit

        @override
        def discover(self) -> list[kdp.Device]:
            return []

    return {"cards": Cards}


def test_an_option_that_was_renamed_to_nothing_was_refused_only_where_a_node_has_the_old_name() -> None:
    with pytest.raises(ConfigurationError, match="'old' is called 'nothing' now, and the constructor has no such"):
        assign(renamed(old="nothing"), {}, host=HOST)


@pytest.mark.parametrize("label", ["--set max_errors", "KDP_SET_MAX_ERRORS"])
def test_a_renamed_option_keeps_its_old_name(label: str, caplog: pytest.LogCaptureFixture) -> None:
    name = label.split()[-1].removeprefix("KDP_SET_")
    (recipe,) = assign(renamed(max_errors="ecc_limit"), {name: GivenValue(label, "5")}, host=HOST)
    assert recipe.arguments == {"ecc_limit": 5}
    assert caplog.messages == [f"{label}: the parameter is called ecc_limit now; rename it"]


def test_the_old_name_and_the_new_one_at_once_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--set max_errors: 'ecc_limit' and 'max_errors' are one parameter"):
        assign(renamed(max_errors="ecc_limit"), given(ecc_limit="4", max_errors="5"), host=HOST)


def test_a_renamed_option_that_leads_nowhere_is_the_classs_mistake() -> None:
    with pytest.raises(ConfigurationError, match=r"^Cards\.renamed_options: 'max_errors' is called 'limit' now, and"):
        assign(renamed(max_errors="limit"), given(max_errors="4"), host=HOST)
