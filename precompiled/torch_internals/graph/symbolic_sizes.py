"""Encodes the symbols of Dynamo's shape environment, and rebuilds the symbols and their guards in the worker.

A symbol is named by the position of its first use (``s0``, ``s1``, ...) and described by its range. A symbol's *hint*,
the size that the client had when it traced, is not part of the key: one artifact serves all sizes that its guards
accept. The guards that AOTAutograd and Inductor add during the compile are stored with the artifact.

Guards name the graph's *size inputs* by their position: ``t0``, ``t1``, ... Every integer input without unbacked
symbols is a size input. An integer that Dynamo has specialized to one value remains a SymInt, so it is also a size
input.

An *unbacked* symbol (``mark_unbacked``) has no hint and no guards, and inputs with such a symbol are not size inputs.
Either the compiled code is valid for all values of an unbacked symbol, or it asserts conditions on the value at run
time (runtime_assertions.py). An unbacked symbol is encoded as it was before any assertion, and without a range. The
worker derives the range from the assertions, because the graph contains them.

Private names: torch.fx.experimental.symbolic_shapes.{DimDynamic, SYMPY_INTERP, ShapeEnv.{create_symbol,
create_unspecified_symbol, create_unbacked_symint, create_symintnode, create_symfloatnode, replacements, guards,
replace, var_to_range, backed_var_to_val, is_unbacked_symint, size_like, var_to_hint_override, unbacked_inputs,
_constrain_range_for_size, ignore_fresh_unbacked_symbols, produce_guards_expression, evaluate_guards_expression}},
torch.utils._sympy.functions, torch.utils._sympy.value_ranges.ValueRanges, torch._dynamo.source.ConstantSource,
torch.SymInt.node.{expr, _expr, shape_env}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.value_ranges import ValueRanges

from precompiled.core.errors import Bypass, CompileFailed

if TYPE_CHECKING:
    from precompiled.core.program_data import InputsData

# Operators of size expressions. The arguments of commutative operators are sorted, so that equal sizes have equal
# encodings.
_COMMUTATIVE = {"Add": sympy.Add, "Mul": sympy.Mul}
_OTHER = {
    "Pow": sympy.Pow,
    **{
        name: getattr(torch_functions, name)
        for name in ("FloorDiv", "Mod", "PythonMod", "CleanDiv", "CeilDiv", "Max", "Min", "ModularIndexing")
        if hasattr(torch_functions, name)
    },
}


class Symbols:
    """The symbols of one graph in the client, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, int] = {}
        self._unbacked: dict[sympy.Symbol, int] = {}
        self.ranges: list[list[int | None]] = []
        self.hints: list[int] = []
        self.unbacked: list[list[object]] = []  # per symbol: [is a size, the program's hint or None]

    def size(self, value: object) -> Any:
        """Encode a size as plain data: an int, or an expression over symbols.

        Raises Bypass if the size is neither an int nor an expression of known operators.
        """
        if type(value) is int:
            return value
        if not isinstance(value, torch.SymInt):
            raise Bypass(f"a size is a {type(value).__name__}", code="unsupported-size")
        return self._expression(without_assertions(value), value.node.shape_env)

    def _expression(self, expression: Any, env: ShapeEnv) -> object:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if env.is_unbacked_symint(expression):
                return {"u": self._unbacked_symbol(expression, env)}
            return {"s": self._symbol(expression, env)}
        name = type(expression).__name__
        if name not in _COMMUTATIVE and name not in _OTHER:
            raise Bypass(f"a size is the expression {expression}", code="unsupported-size")
        arguments = [self._expression(argument, env) for argument in expression.args]
        if name in _COMMUTATIVE:
            arguments.sort(key=repr)
        return {name: arguments}

    def _symbol(self, symbol: sympy.Symbol, env: ShapeEnv) -> int:
        known = self._names.get(symbol)
        if known is not None:
            return known
        if symbol not in env.backed_var_to_val:
            raise Bypass(f"the size {symbol} is neither backed nor unbacked", code="unsupported-size")
        value_range = env.var_to_range.get(symbol)
        if value_range is None:
            # The symbol belongs to a SingletonInt, which equals only itself.
            raise Bypass(f"the size {symbol} is the number of a nested tensor's rows", code="unsupported-input")
        self.ranges.append([_bound(value_range.lower), _bound(value_range.upper)])
        self.hints.append(int(env.backed_var_to_val[symbol]))
        self._names[symbol] = len(self._names)
        return self._names[symbol]

    def _unbacked_symbol(self, symbol: sympy.Symbol, env: ShapeEnv) -> int:
        if symbol not in self._unbacked:
            self._unbacked[symbol] = len(self.unbacked)
            self.unbacked.append([symbol in env.size_like, env.var_to_hint_override.get(symbol)])
        return self._unbacked[symbol]


def without_assertions(value: torch.SymInt) -> Any:
    """The expression of a size. For an unbacked size, it is the expression before assertions replaced symbols.

    An assertion that two symbols are equal replaces one by the other. A worker that starts from the replaced expression
    could not repeat the assertion.
    """
    node = value.node
    symbols = node._expr.free_symbols | node.expr.free_symbols
    return node._expr if any(node.shape_env.is_unbacked_symint(symbol) for symbol in symbols) else node.expr


def is_backed(encoded: Any) -> bool:
    """Whether an encoded size can be computed from the values of the backed symbols."""
    if type(encoded) is int:
        return True
    ((name, content),) = encoded.items()
    return name == "s" if name in ("s", "u") else all(map(is_backed, content))


def is_size_input(item: Mapping[str, object]) -> bool:
    """Whether the described input is a size input, so that guards may name it."""
    return "size" in item and is_backed(item["size"])


def size_values(inputs: InputsData, hints: list[int]) -> list[int]:
    """The values of the size inputs in an ``inputs`` section, in order.

    ``hints``: the values of the section's symbols.
    """
    return [evaluate(item["size"], hints) for item in inputs["args"] if is_size_input(item)]


def _bound(value: Any) -> int | None:
    """A bound of a range, or None if it is infinite (int_oo is not an Integer)."""
    return int(value) if getattr(value, "is_Integer", False) else None


class SizeMaker:
    """Rebuilds a client's symbols in a worker's shape environment."""

    def __init__(
        self,
        env: ShapeEnv,
        ranges: list[list[int | None]],
        hints: list[int],
        floats: list[float],
        unbacked: Sequence[list[Any]] = (),
    ) -> None:
        if len(ranges) != len(hints):
            raise ValueError(f"{len(ranges)} ranges for {len(hints)} hints")
        from torch._dynamo.source import ConstantSource

        self._env = env
        self._hints = hints
        self._symbols = []
        self._fixed: dict[int, torch.SymInt] = {}
        for position, ((lower, upper), hint) in enumerate(zip(ranges, hints, strict=True)):
            symbol = env.create_symbol(
                hint,
                ConstantSource(f"s{position}"),
                dynamic_dim=DimDynamic.DYNAMIC,
                positive=True if lower is not None and lower > 0 else None,
                do_not_specialize_zero_one=True,
            )
            whole = env.var_to_range[symbol]
            env.var_to_range[symbol] = ValueRanges(
                whole.lower if lower is None else sympy.Integer(lower),
                whole.upper if upper is None else sympy.Integer(upper),
            )
            self._symbols.append(symbol)
        with env.ignore_fresh_unbacked_symbols():
            self._unbacked = [_new_unbacked(env, *described) for described in unbacked]
        self.floats = []  # SymFloats, for the floats that Dynamo passes as tensors
        self._float_symbols = set()
        for position, value in enumerate(floats):
            source = ConstantSource(f"f{position}")
            symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            self._float_symbols.add(symbol)
            self.floats.append(env.create_symfloatnode(symbol, hint=value, source=source))

    def fixed_floats(self) -> bool:
        """Whether the compiled code is valid for only some values of the floats."""
        env = self._env
        return any(symbol in env.replacements for symbol in self._float_symbols) or any(
            self._float_symbols & guard.expr.free_symbols for guard in env.guards
        )

    def size(self, encoded: object) -> Any:
        """Decode a size to an int or to a SymInt of the environment."""
        if type(encoded) is int:
            return encoded
        hint = evaluate(encoded, self._hints) if is_backed(encoded) else None
        return self._env.create_symintnode(self._expression(encoded), hint=hint)

    def size_input(self, encoded: object) -> torch.SymInt:
        """A size input of the graph as a SymInt, even if Dynamo has specialized it to one value.

        AOTAutograd would treat a plain integer as a size that may change, and would guard on it by a name that does not
        exist.
        """
        if type(encoded) is not int:
            made: torch.SymInt = self.size(encoded)
            return made
        if encoded not in self._fixed:
            from torch._dynamo.source import ConstantSource

            source = ConstantSource(f"c{encoded}")
            symbol = self._env.create_unspecified_symbol(encoded, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            fixed = self._env.create_symintnode(symbol, hint=encoded, source=source)
            int(fixed)  # specializes the symbol to this value
            self._fixed[encoded] = fixed
        return self._fixed[encoded]

    def _expression(self, encoded: Any) -> object:
        if type(encoded) is int:
            return sympy.Integer(encoded)
        ((name, content),) = encoded.items()
        if name == "s":
            return self._symbols[content]
        if name == "u":
            return self._unbacked[content]
        return {**_COMMUTATIVE, **_OTHER}[name](*(self._expression(argument) for argument in content))


def _new_unbacked(env: ShapeEnv, is_size: bool, hint: int | None) -> sympy.Symbol:
    """Create the symbol of an unbacked input, like create_symbol with DimDynamic.UNBACKED, but without a source."""
    symbol = env.create_unbacked_symint().node.expr
    if is_size:
        env._constrain_range_for_size(symbol)
    env.unbacked_inputs.add(symbol)
    if hint is not None:
        env.var_to_hint_override[symbol] = hint
    return symbol


def evaluate(encoded: Any, hints: list[int]) -> int:
    """The value of an encoded backed size; ``hints`` are the values of the backed symbols."""
    if type(encoded) is int:
        return encoded
    ((name, content),) = encoded.items()
    if name == "s":
        return hints[content]
    return int({**_COMMUTATIVE, **_OTHER}[name](*(sympy.Integer(evaluate(item, hints)) for item in content)))


def produced_guards(symints: list[torch.SymInt], values: list[int]) -> str:
    """Return the guards that a compile has added for these size inputs. ``values``: the sizes of the compile.

    Raises CompileFailed if the inputs cannot express every guard, or if the guards exclude ``values``.
    AOTAutogradCache.generate_guards_expression omits a guard on a symbol that is not an input itself (a symbol that was
    found equal to another size, for example). Without such a guard, an artifact would serve sizes for which it computes
    wrong results.
    """
    if not symints:
        return ""
    env = symints[0].node.shape_env
    known = {symint.node.expr for symint in symints if symint.node.expr.is_Symbol}
    for guard in env.guards:
        if env.replace(guard.expr).free_symbols - known:
            raise CompileFailed(f"it needs {guard.expr}, which does not follow from its inputs", code="size-guards")
    guards = env.produce_guards_expression(placeholders=symints) or ""
    if not guard_check(guards)(values):
        raise CompileFailed(f"the guards fail for the sizes of the compile, {values}: {guards}", code="size-guards")
    return guards


def guard_check(guards: str) -> Callable[[list[int]], bool]:
    """Return a function that takes values of the size inputs, in order, and returns whether these guards accept them.

    ``guards`` is an expression that ShapeEnv.produce_guards_expression returned, from a verified artifact. The returned
    function raises CompileFailed if the expression cannot be evaluated, for example because it names other inputs.
    """
    if not guards:
        return lambda values: True
    code = compile(guards, "<guards>", "eval")

    def check(values: list[int]) -> bool:
        try:
            return bool(eval(code, SYMPY_INTERP, {"L": {f"t{index}": value for index, value in enumerate(values)}}))
        except ArithmeticError:  # a division by a size of 0
            return False
        except Exception as error:
            raise CompileFailed(f"guards that cannot be evaluated: {guards}", code="size-guards") from error

    return check


def tell_nothing_new(guards: str, inputs: InputsData) -> bool:
    """Whether an artifact's guards follow from the captured inputs: from the symbols' bounds and the fixed sizes.

    ``inputs`` is the section ``inputs`` of a program.
    """
    encoded = [item["size"] for item in inputs["args"] if is_size_input(item)]

    def holds(expression: ast.expr) -> bool:
        match expression:
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(map(holds, parts))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return all(map(compared, [left, *others], ops, others))
        return False

    def compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
        first, second = bounds(left), bounds(right)
        if first is None or second is None:
            return False
        (_, most), (least, _) = first, second
        if isinstance(operator, ast.LtE):
            return most is not None and least is not None and most <= least
        return isinstance(operator, ast.Eq) and first == second and most is not None and most == least

    def bounds(expression: ast.expr) -> list[int | None] | None:
        match expression:
            case ast.Constant(value=int(value)):
                return [value, value]
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                size = encoded[int(name.removeprefix("t"))]
                return [size, size] if type(size) is int else inputs["ranges"][size["s"]] if "s" in size else None
        return None

    return not guards or holds(ast.parse(guards, mode="eval").body)


def install_guards(guards: str, symints: list[torch.SymInt]) -> bool:
    """Add an artifact's guards to the client's shape environment, for Dynamo to check. Returns False if one fails."""
    if not guards:
        return True
    env = next((symint.node.shape_env for symint in symints if isinstance(symint, torch.SymInt)), None)
    return env is None or bool(env.evaluate_guards_expression(guards, symints))
