"""What the pages show, runs: python blocks in order, a page at a time, and they print what is shown."""

import doctest
import re
import warnings

import pytest
from docs.pages import DOCS, FOR_INSTANCE, pages, steps

pytestmark = [pytest.mark.docs, pytest.mark.processes]

RUNNABLE = [path for path in pages() if steps(path)]
FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF


@pytest.fixture(autouse=True)
def _one_thread():
    """Tests run beside each other; threads of torch that wait for each other on a busy machine take minutes."""
    try:
        import torch
    except ModuleNotFoundError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_are_pages_with_code():
    names = {path.relative_to(DOCS).as_posix() for path in RUNNABLE}
    howtos = {
        f"howto/{name}.md" for name in ("method", "schedules", "dispatch", "task", "engine", "durations", "callback")
    }
    guides = {"guides/migrate.md"}
    users = {f"users/{name}.md" for name in ("engineer", "federated", "researcher", "planner")}
    assert {"tutorial.md", "index.md"} | howtos | guides | users <= names


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_the_page_runs_and_prints_what_it_shows(path, tmp_path, monkeypatch, capsys):
    if any("import torch" in block.text for block, _ in steps(path)):
        pytest.importorskip("torch", reason="the page trains a PyTorch model: pip install 'asyncsgd[torch]'")
    if any("from accelerate import" in block.text for block, _ in steps(path)):
        pytest.importorskip("accelerate", reason="the page shows an Accelerate script: pip install 'asyncsgd[dev]'")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block, shown in steps(path):
        where = f"{path.relative_to(DOCS)}, line {block.line}"
        code = compile("\n" * block.line + block.text, str(path), "exec")  # a traceback then names the line of the page
        run(code, names)
        printed = capsys.readouterr().out
        if shown is None:
            assert not printed, f"{where} prints something that the page does not show:\n{printed}"
            continue
        assert printed, f"{where} prints nothing"
        if shown.info == FOR_INSTANCE:
            assert begins(printed) == begins(shown.text), f"{where} prints something else:\n{printed}"
            continue
        example = doctest.Example(block.text, shown.text)
        checker = doctest.OutputChecker()
        if not checker.check_output(example.want, printed, FLAGS):
            pytest.fail(f"{where}:\n{checker.output_difference(example, printed, FLAGS)}")


def run(code, names):
    """Run a block. Warnings are errors, except the one about a CPU on which bfloat16 is slow: it depends on the CPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r'precision = "bfloat16": this machine has no GPU', UserWarning)
        exec(code, names)


def test_a_cpu_without_bfloat16_runs_the_pages_and_other_warnings_are_errors(monkeypatch):
    pytest.importorskip("torch")
    from asyncsgd.tasks._torch import checks

    monkeypatch.setattr(checks, "has_accelerator", lambda: False)
    monkeypatch.setattr(checks, "cpu_computes_in", lambda precision: False)
    code = """
from torch import nn, zeros
import asyncsgd as asgd
data = zeros(4, 3), zeros(4).long()
asgd.tasks.torch(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, batch_size=2, precision="{}")
"""
    run(code.format("bfloat16"), {})
    with pytest.raises(UserWarning, match="float16"):
        run(code.format("float16"), {})


def begins(text):
    """Return the words of the first line up to its first number."""
    return re.split(r"\d", text, maxsplit=1)[0].partition("\n")[0]


def test_the_first_example_of_a_howto_is_short():
    """About ten lines for the part itself; then those that use it."""
    for path in RUNNABLE:
        if path.parent.name == "howto":
            lines = [line for line in steps(path)[0][0].text.splitlines() if line.strip() and "import" not in line]
            assert len(lines) <= 18, f"{path.name}: {len(lines)} lines"


def test_a_page_that_shows_something_else_is_caught(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('```python\nprint(1)\n```\n\n```text title="prints"\n2\n```\n')
    ((block, shown),) = steps(page)
    assert (block.text, shown.text, block.line) == ("print(1)\n", "2\n", 1)
    assert not doctest.OutputChecker().check_output(shown.text, "1\n", FLAGS)
    assert begins("- delays: 3 on average") == begins("- delays: 2.5 at most") == "- delays: "
    assert begins("- delays: 3") != begins("- step: 0.2")
