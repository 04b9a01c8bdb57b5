import re
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

import uaprop
from uaprop.cli import main
from uaprop.cli.app import app
from uaprop.plot import FIGURES


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def words(text):
    """The text on one line: the terminal's width decides where it is broken."""
    return " ".join(text.split())


def test_version():
    answer = run("--version")
    assert answer.exit_code == 0
    assert answer.stdout.strip() == f"uaprop {uaprop.__version__}"


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_is_short_and_names_the_commands(arguments):
    answer = run(*arguments)
    assert re.search(r"\bdemo\b", answer.output)
    assert re.search(r"\bfigures\b", answer.output)
    assert len(answer.output.splitlines()) < 25


def test_figures_lists_what_it_wrote(tmp_path, monkeypatch):
    kept = {"uarelu": FIGURES["uarelu"]}
    monkeypatch.setattr("uaprop.plot.figures.FIGURES", kept)  # all are drawn in test_figures.py
    answer = run("figures", "--out", tmp_path / "new")
    assert answer.exit_code == 0, answer.output
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"uarelu.png", "uarelu.svg"}
    assert "uarelu.png uarelu.svg" in words(answer.stdout)
    assert str(tmp_path / "new") in answer.stdout


def test_demo_prints_a_table_and_saves_a_picture(tmp_path):
    out = tmp_path / "sub" / "digits.png"
    answer = run("demo", "--out", out, "--samples", 500)
    assert answer.exit_code == 0, answer.output
    cell = r"(\d\.\d{3}) ± (\S+)"
    rows = re.findall(
        rf"^ *(\d) +(\d) +{cell} +{cell} +{cell} +([\d.]+) +([\d.]+) *$",
        answer.stdout,
        re.MULTILINE,
    )
    assert len(rows) == 6
    for true, predicted, *numbers in rows:
        assert true == predicted
        report, report_std, default, default_std, sampled, sampled_std, small, right = map(
            float, numbers
        )
        assert report_std < 0.1 * default_std
        assert small < 0.1
        assert right == pytest.approx(1, abs=0.15)
        assert report > 0.99
        assert default == pytest.approx(sampled, abs=0.1)
        assert default_std == pytest.approx(sampled_std, abs=0.1)
    told = words(answer.stdout)
    ratio = re.search(r"([\d.]+) times too small", told)
    assert ratio is not None
    assert float(ratio[1]) > 10
    error = re.search(r"takes hybrid here.*on average within ([\d.]+)% of Monte Carlo's", told)
    assert error is not None
    assert float(error[1]) < 6
    assert re.search(r"in the time of \d+ forward passes by the clock instead of 500\b", told)
    assert f"Picture: {out}" in answer.stdout
    with Image.open(out) as picture:
        assert picture.width >= 1500
        assert len(picture.convert("L").getcolors()) > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "1"], "'--samples'"),
        (["--std", "-1"], "'--std'"),
        (["--gain", "inf"], "not a finite number"),
        (["--std", "nan"], "'--std'"),
        (["--std", "0", "--gain", "0"], "no error bars"),
        (["--out", "digits.xyz"], "digits.xyz ends in none of"),
    ],
)
def test_demo_says_what_is_wrong_before_any_work(arguments, message):
    answer = run("demo", *arguments)
    assert answer.exit_code == 2
    assert message in words(re.sub("[│╭╮╰╯─]", " ", answer.output))


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [("typer", "--version", "cli"), ("matplotlib", "demo", "plot"), ("sklearn", "figures", "plot")],
)
def test_a_missing_extra_is_named_in_one_line(module, command, extra, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in list(sys.modules):
        if name.split(".")[0] == module or name.startswith(
            ("uaprop.cli.", "uaprop.plot", "uaprop.demo")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # importing it now fails
    monkeypatch.setattr(sys, "argv", ["uaprop", command])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert (
        stopped.value.code
        == f"uaprop: {module} is not installed; run: pip install 'uaprop[{extra}]'"
    )


def test_another_missing_module_is_not_explained_away(monkeypatch):
    monkeypatch.delitem(sys.modules, "uaprop.cli.app")
    monkeypatch.setitem(sys.modules, "math", None)
    with pytest.raises(ModuleNotFoundError, match="math"):
        main()


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(sys, "argv", ["uaprop", "demo", "--out", str(tmp_path / "file" / "x.png")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert str(stopped.value.code).startswith("uaprop: ")
    assert str(tmp_path / "file") in str(stopped.value.code)


def test_the_library_imports_no_extra_and_the_module_runs():
    extras = {"matplotlib", "PIL", "rich", "sklearn", "typer"}
    code = f"import sys, uaprop, uaprop.demo; print(sorted({extras} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
