"""Whether importing a script does nothing but define things, as far as its text tells.

A process that imports the script that another one runs must not train there a second time. A guard
somewhere in it is not enough: what stands outside runs. So all that is not known to be harmless
counts as work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

_FUNCTIONS = """
bool bytes classmethod complex dict enumerate float frozenset int isinstance len list object
property range repr reversed round set slice sorted staticmethod str sum tuple type zip
abc.abstractmethod collections.OrderedDict collections.defaultdict collections.deque
collections.namedtuple contextlib.contextmanager dataclasses.dataclass dataclasses.field enum.auto
enum.unique functools.cache functools.cached_property functools.lru_cache functools.partial
functools.total_ordering functools.wraps logging.getLogger numpy.arange numpy.array numpy.ones
numpy.random.default_rng numpy.random.seed numpy.zeros os.environ.get os.environ.setdefault
os.getcwd os.getenv os.path.abspath os.path.basename os.path.dirname os.path.exists
os.path.expanduser os.path.join os.path.realpath pathlib.Path random.seed re.compile
sys.path.append sys.path.insert torch.arange torch.cuda.is_available torch.device
torch.inference_mode torch.manual_seed torch.no_grad torch.ones torch.set_default_dtype
torch.set_float32_matmul_precision torch.set_num_threads torch.tensor torch.zeros typing.NewType
typing.ParamSpec typing.TypeVar typing.cast typing.final typing.overload typing.runtime_checkable
warnings.filterwarnings warnings.simplefilter
"""
_METHODS = """
absolute as_posix copy decode encode endswith expanduser format get getter is_dir is_file items join
joinpath keys lower lstrip resolve removeprefix removesuffix replace rstrip setter split splitlines
startswith strip upper values with_name with_suffix
"""
_HARMLESS_FUNCTIONS = frozenset(_FUNCTIONS.split())
_HARMLESS_METHODS = frozenset(_METHODS.split())
"""Of values that the script makes: those of imported modules are functions."""


def line_that_works(path: str) -> int | None:
    """The first line of a script that may do more than define something when the script is
    imported; None if there is none.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(Path(path).read_bytes())
    return min((node.lineno for node in _Script(tree).work(tree.body)), default=None)


class _Script:
    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        """Dotted paths of names that are imported; empty for those that the script makes."""
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    name = alias.name
                    if isinstance(node, ast.ImportFrom):
                        name = f"{node.module}.{name}"
                    elif alias.asname is None:
                        name = name.partition(".")[0]
                    known = self._names.setdefault(alias.asname or alias.name, name)
                    if known != name:
                        self._names[alias.asname or alias.name] = ""
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._names[node.name] = ""
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self._names[node.id] = ""

    def work(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that are not known to be harmless."""
        for node in body:
            harmless, inner = True, []
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Delete():
                    pass
                case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Assert():
                    harmless = all(map(self._is_harmless, ast.iter_child_nodes(node)))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    harmless = self._are_harmless(node.args, node.returns)
                case ast.ClassDef():
                    harmless = self._are_harmless(*node.bases, *node.keywords)
                    inner = node.body
                case ast.If():
                    harmless = self._is_harmless(node.test)
                    inner = node.orelse if _is_guard(node.test) else node.body + node.orelse
                case ast.Try():
                    harmless = self._are_harmless(*(handler.type for handler in node.handlers))
                    inner = node.body + node.orelse + node.finalbody
                    inner += [line for handler in node.handlers for line in handler.body]
                case _:
                    harmless = False
            if not harmless or not all(map(self._decorates, getattr(node, "decorator_list", ()))):
                yield node
            yield from self.work(inner)

    def _decorates(self, node: ast.expr) -> bool:
        return self._is_harmless(node) if isinstance(node, ast.Call) else self._may_call(node)

    def _are_harmless(self, *nodes: ast.AST | None) -> bool:
        return all(self._is_harmless(node) for node in nodes if node is not None)

    def _is_harmless(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Lambda):
            return self._is_harmless(node.args)  # what it returns is not evaluated
        if isinstance(node, ast.Call):
            if not self._may_call(node.func) or any(map(self._is_foreign, node.args)):
                return False
        elif isinstance(node, ast.comprehension) and self._is_foreign(node.iter):
            return False
        return all(map(self._is_harmless, ast.iter_child_nodes(node)))  # no other kind calls

    def _may_call(self, function: ast.expr) -> bool:
        path = self._path(function)
        if path is not None:
            return path in _HARMLESS_FUNCTIONS
        return isinstance(function, ast.Attribute) and function.attr in _HARMLESS_METHODS

    def _is_foreign(self, node: ast.expr) -> bool:
        """Whether it is an imported object, which may do anything when it is iterated."""
        return isinstance(node, ast.Name) and "." in self._names.get(node.id, "")

    def _path(self, node: ast.expr) -> str | None:
        """Where a name, or an attribute of a module, is from; None for what the script makes."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id) or None
        if isinstance(node, ast.Attribute) and (path := self._path(node.value)) is not None:
            return f"{path}.{node.attr}"
        return None


def _is_guard(test: ast.expr) -> bool:
    """Whether it is false in a script that is imported."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_guard, test.values))
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [getattr(s, "id", getattr(s, "value", None)) for s in (test.left, *test.comparators)]
    return set(map(str, sides)) == {"__name__", "__main__"} and len(sides) == 2
