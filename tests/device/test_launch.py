"""Kernels that are launched while the previous one runs: none of them reads anything before that one is done."""

import ast
from pathlib import Path

import bestfirst

FOLDER = Path(bestfirst.__file__).parent / "engine" / "device"
FUNCTIONS = [
    each for path in FOLDER.rglob("*.py") for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)
]


def test_every_overlapping_kernel_waits_first():
    kernels = {
        each.name: each for each in FUNCTIONS if "OVERLAP" in [a.arg for a in each.args.args] and each.name != "wait_for_previous"
    }
    assert kernels.keys() == {
        "matmul_tf32x3", "add_norm", "attend", "grow", "share_rows", "assign_rows", "embed", "lse_and_maxima", "keep_best",
    }  # fmt: skip
    for kernel in kernels.values():
        docstring, first = kernel.body[:2]
        assert ast.unparse(first) == "wait_for_previous(OVERLAP)", kernel.name
        assert isinstance(docstring, ast.Expr)
        assert isinstance(docstring.value, ast.Constant)


def test_a_kernel_waits_before_it_lets_the_next_one_launch():
    (wait,) = [each for each in FUNCTIONS if each.name == "wait_for_previous"]
    assert [line.strip() for line in ast.unparse(wait.body[1]).splitlines()] == [
        "if OVERLAP:", "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()",
    ]  # fmt: skip
