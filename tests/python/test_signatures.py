"""Names, order and defaults of the public operators are those of the installed fla-core."""

import ast
import importlib.metadata
import inspect

import pytest

import linattn.ops

VERSION = "0.5.2"

# Module in fla.ops -> public operators. **kwargs of FLA are keywords of ours, so not compared.
OPERATORS = {
    "kda/chunk.py": ["chunk_kda"],
    "kda/fused_recurrent.py": ["fused_recurrent_kda", "fused_recurrent_kda_fwd"],
    "kda/gate.py": ["fused_kda_gate"],
    "kda/naive.py": ["naive_recurrent_kda"],
    "gated_delta_rule/chunk.py": ["chunk_gated_delta_rule"],
    "gated_delta_rule/fused_recurrent.py": ["fused_recurrent_gated_delta_rule"],
    "gated_delta_rule/gate.py": ["fused_gdn_gate"],
    "gated_delta_rule/naive.py": ["naive_recurrent_gated_delta_rule"],
    "delta_rule/chunk.py": ["chunk_delta_rule"],
    "delta_rule/fused_recurrent.py": ["fused_recurrent_delta_rule"],
    "gla/chunk.py": ["chunk_gla"],
    "gla/fused_recurrent.py": ["fused_recurrent_gla"],
    "gla/naive.py": ["naive_recurrent_gla"],
    "simple_gla/chunk.py": ["chunk_simple_gla"],
    "simple_gla/fused_recurrent.py": ["fused_recurrent_simple_gla"],
    "simple_gla/naive.py": ["naive_recurrent_simple_gla"],
    "lightning_attn/chunk.py": ["chunk_lightning_attn"],
    "lightning_attn/fused_recurrent.py": ["fused_recurrent_lightning_attn"],
}
CASES = [(path, name) for path, names in OPERATORS.items() for name in names]

# What each family takes through FLA's **kwargs.
KEYWORDS = {
    "chunk_kda": {"A_log", "dt_bias", "chunk_size", "transpose_state_layout"},
    "fused_recurrent_kda": {"transpose_state_layout"},
    "chunk_gated_delta_rule": {
        "use_gate_in_kernel",
        "A_log",
        "dt_bias",
        "chunk_size",
        "transpose_state_layout",
        "head_first",
    },
    "fused_recurrent_gated_delta_rule": {"transpose_state_layout"},
    "chunk_delta_rule": {"chunk_size", "head_first"},
    "fused_recurrent_gla": {"transpose_state_layout"},
    "chunk_simple_gla": {"chunk_size", "head_first"},
    "fused_recurrent_simple_gla": {"transpose_state_layout"},
    "chunk_lightning_attn": {"chunk_size", "head_first"},
    "fused_recurrent_lightning_attn": {"head_first"},
}
ADDITIONS = {
    "out",
    "state_indices",
    "output_state_indices",
    "null_state_index",
    "has_initial_state",
    "num_accepted_tokens",
    "auto_cp",
    "batch_invariant",
    "output_state_dtype",
    "state_v_first",
}
CHUNK_ADDITIONS = {"return_intermediate_states", "state_every"}


def _fla_source(path: str) -> str:
    try:
        version = importlib.metadata.version("fla-core")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    if version != VERSION:
        pytest.skip(f"fla-core {version} is installed; the signatures are those of {VERSION}")
    for file in importlib.metadata.files("fla-core") or ():
        if str(file) == f"fla/ops/{path}":
            return file.read_text()
    raise AssertionError(f"fla-core has no fla/ops/{path}")


@pytest.mark.parametrize(("path", "name"), CASES, ids=[name for _, name in CASES])
def test_parameters_are_flas(path, name):
    tree = ast.parse(_fla_source(path))
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    defaults = [ast.literal_eval(d) if not _is_dtype(d) else ast.unparse(d).removeprefix("torch.")
                for d in node.args.defaults]  # fmt: skip
    names = [a.arg for a in node.args.args]
    theirs = list(zip(names, [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults,
                      strict=True))  # fmt: skip
    ours = []
    for parameter in inspect.signature(getattr(linattn.ops, name)).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = parameter.default
        ours.append((parameter.name, str(default).removeprefix("torch.")
                     if type(default).__name__ == "dtype" else default))  # fmt: skip
    assert ours == theirs


def _is_dtype(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute)


@pytest.mark.parametrize("name", sorted(KEYWORDS))
def test_keywords_of_kwargs_are_explicit(name):
    parameters = inspect.signature(getattr(linattn.ops, name)).parameters
    assert KEYWORDS[name] <= set(parameters)


PUBLIC = [
    name
    for name in linattn.ops.__all__
    if name.startswith(("chunk_", "fused_recurrent_")) and not name.endswith(("_fwd", "_bwd"))
]


@pytest.mark.parametrize("name", PUBLIC)
def test_additions_are_keyword_only(name):
    parameters = inspect.signature(getattr(linattn.ops, name)).parameters
    wanted = ADDITIONS | (CHUNK_ADDITIONS if name.startswith("chunk_") else set())
    assert wanted <= set(parameters)
    for addition in wanted - {"state_v_first", "return_intermediate_states"}:
        assert parameters[addition].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def test_every_submodule_has_its_operators():
    for module in ("kda", "gated_delta_rule", "delta_rule", "gla", "simple_gla", "lightning_attn"):
        names = getattr(linattn.ops, module).__all__
        for start in ("chunk_", "fused_recurrent_", "naive_"):
            assert any(name.startswith(start) for name in names), (module, start)
        assert any(name.endswith("_fwd") for name in names)
        assert any(name.endswith("_bwd") for name in names)
