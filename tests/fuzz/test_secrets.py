"""Tokens, keys and passwords: in no record, log, report or message; code of others is not run."""

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specbench.bench.redact import HIDDEN, hide_secrets, redact, redact_argv
from specbench.bench.run import run_benchmark
from specbench.cli import main
from specbench.config import RunConfig
from specbench.config_build import build_config
from specbench.engine.tokenizer import load_tokenizer
from specbench.errors import DataError, SpecbenchError, UsageError
from specbench.methods.vllm.backend import VllmBackend, VllmJob
from specbench.methods.vllm.method import Vllm, VllmParameters
from specbench.tune.storage import open_storage
from tests.support.folder import write_model, write_prompts
from tests.support.hostile import examples
from tests.support.vllm import fake_python

PACKAGE = Path(__file__).parents[2] / "specbench"
SECRET = "correct-horse/battery@staple"
LETTERS = st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMN23456789", min_size=10, max_size=30)


@examples(150)
@given(
    secret=LETTERS,
    name=st.sampled_from(("hf_token", "HF-TOKEN", "api_key", "password", "PGPASSWORD", "secret",
                          "access_token", "private-key", "my_api_key", "aws_session_token")),
    form=st.sampled_from(("{n}={s}", "--{n}={s}", "--{n} {s}", '"{n}": "{s}"', "'{n}': '{s}'",
                          '{{\\"{n}\\": \\"{s}\\"}}', "{n} = '{s}'", "a?{n}={s}&b=1",
                          "f({n}={s}, x=1)")),
)  # fmt: skip
def test_a_named_secret_is_hidden(secret: str, name: str, form: str) -> None:
    text = form.format(n=name, s=secret)
    words = text.split(" ") if form.startswith("--{n} ") else ["--vllm-arg", text]
    assert secret not in str(redact_argv(words))
    assert secret not in str(redact({"vllm_arg": words} if "=" in text else {name: secret}))
    if form != "--{n} {s}":
        assert secret not in hide_secrets(f"before {text} after")
        assert hide_secrets(f"before {text} after").endswith("after")


@examples(100)
@given(
    user=st.sampled_from(("me", "", "a.b")),
    secret=st.text("abcXYZ123!#%&*/:@?+", min_size=6, max_size=20).map(lambda text: f"x{text}x"),
    scheme=st.sampled_from(("postgresql", "postgresql+psycopg", "https", "mysql")),
)
def test_the_login_of_an_address_is_hidden(user: str, secret: str, scheme: str) -> None:
    text = f"cannot open {scheme}://{user}:{secret}@db.host:5432/name?x=1 now"
    shown = hide_secrets(text)
    assert secret not in shown
    assert shown == f"cannot open {scheme}://{HIDDEN}@db.host:5432/name?x=1 now"


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=128",
        "eos_token: </s>",
        '{"token_ids": [1, 2]}',
        "password authentication failed",
        "hf_token=None",
        "https://host:443/path",
        "Qwen/Qwen3-8B@main",
        "the key 'a' stands twice",
        "secret_sauce=3",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "PGPASSWORD", "DB_PASSWORD"])
def test_the_environments_secrets_are_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SECRET)
    assert hide_secrets(f"401 for {SECRET}!") == f"401 for {HIDDEN}!"
    assert redact([f"/data/{SECRET}"]) != [f"/data/{SECRET}"]


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--dataset", "https://me:{}@host/rows.jsonl"),
        ("--vllm-arg", "hf-token={} x"),
        ("--model", "{}/config"),
        ("--method", "vllm", "--vllm-arg", 'speculative_config={{"password": "{}"'),
        ("--seed", "hf_token={}"),
    ],
)
def test_no_error_tells_a_secret(
    arguments: tuple[str, ...],
    debug: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden-in-the-environment")
    secret = "hidden-in-the-environment" if "--model" in arguments else "correcthorse"
    words = [word.format(secret) for word in arguments]
    with pytest.raises(SystemExit) as ended:
        main([*debug, "run", "--model", "dummy:tiny", *words])
    said = capsys.readouterr()
    assert ended.value.code in (2, 3)
    assert said.err.startswith(("specbench: error: ", "Traceback"))
    assert secret not in said.err + said.out


@pytest.mark.parametrize(
    "location",
    [
        "postgresql+nothing://me:{}@host/db",
        "postgresql://me:{}@[host/db",
        "postgresql+psycopg://me:{}@127.0.0.1:1/db",
        "mysql://me:{}@host/db",
        "nothing://me:{}@host/db",
        "sqlite:////no/such/folder/x.db?password={}",
    ],
)
def test_no_storage_tells_its_password(location: str, tmp_path: Path) -> None:
    with pytest.raises(SpecbenchError) as raised:
        open_storage(location.format(SECRET), tmp_path)
    for part in (SECRET, "battery", "staple"):
        assert part not in str(raised.value)


def test_a_run_writes_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden-in-the-environment")
    model = write_model(tmp_path / "hidden-in-the-environment" / "model", seed=3)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [40, 17])
    speculation = (
        '{"method": "ngram", "num_speculative_tokens": 2, "hf_token": "correcthorse", '
        '"url": "https://me:correcthorse@host/"}'
    )
    config = build_config(
        {
            "model": str(model), "dataset": f"file:{prompts}", "method": "vllm",
            "vllm_python": fake_python(tmp_path),
            "vllm_arg": (f"speculative_config={speculation}",),
            "output": tmp_path / "out", "max_new_tokens": 6, "repeats": 1, "num_prompts": 2,
        }
    )  # fmt: skip
    said = io.StringIO()
    argv = ["specbench", "run", "--vllm-arg", f"speculative_config={speculation}"]
    assert run_benchmark(config, console=Console(file=said, width=200), argv=argv) == 0
    log = (tmp_path / "out" / "vllm-ngram.log").read_text()
    assert "engine arguments:" in log
    assert HIDDEN in log
    for file in (tmp_path / "out").iterdir():
        content = file.read_bytes()
        assert b"correcthorse" not in content, file.name
        assert b"hidden-in-the-environment" not in content, file.name
    assert "correcthorse" not in said.getvalue()
    assert (
        HIDDEN in json.loads((tmp_path / "out" / "run.json").read_text())["environment"]["argv"][3]
    )


CODE = """
from pathlib import Path
Path({marker!r}).write_text("was run")
from transformers import PreTrainedTokenizerFast
class Own(PreTrainedTokenizerFast):
    model_type = "own"
"""


@pytest.fixture
def coded(tmp_path: Path) -> tuple[Path, Path]:
    """A model whose tokenizer is code of its own, and the file that the code writes."""
    folder, marker = write_model(tmp_path / "coded"), tmp_path / "marker"
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = json.loads((folder / "config.json").read_text())
    model["auto_map"] = {"AutoModelForCausalLM": "own.Own", "AutoConfig": "own.Own"}
    (folder / "config.json").write_text(json.dumps(model))
    return folder, marker


def test_code_of_a_model_is_not_run(coded: tuple[Path, Path]) -> None:
    folder, marker = coded
    try:
        load_tokenizer(str(folder))
    except DataError as error:
        assert "--trust-remote-code allows it" in str(error)  # noqa: PT017 - either is right
    assert not marker.exists()


def test_it_is_run_where_it_is_trusted(
    coded: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marker = coded
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    tokenizer = load_tokenizer(str(folder), trust_remote_code=True)
    assert type(tokenizer).__name__ == "Own"
    assert marker.read_text() == "was run"


@pytest.mark.parametrize("trusted", [False, True])
def test_vllm_is_told_to_trust_only_where_asked(trusted: bool, tmp_path: Path) -> None:
    from specbench.bench.residency import VllmShare

    share = VllmShare(kv_bytes=1, total=1, group=1, utilization=None)
    config = RunConfig(trust_remote_code=trusted)
    job = VllmJob(config, "vllm", tmp_path, 1, 16, (), 1000, False, share)
    words = VllmBackend(Vllm(VllmParameters()), job)._arguments(tmp_path)
    assert ("--trust-remote-code" in words) is trusted


@pytest.mark.parametrize(
    "argument", ["trust_remote_code=true", "trust-remote-code", "trust_remote=true", "tokenizer=x"]
)
def test_nothing_is_trusted_past_the_option(argument: str) -> None:
    with pytest.raises(UsageError, match="this is set by --"):
        Vllm.arms(RunConfig(vllm_arg=(argument,)))


FORBIDDEN = {
    "pickle": r"\bpickle\b|\btorch\.load\(|\bjoblib\b|\bdill\b|allow_pickle=True|\bmarshal\b",
    "code": r"(?<![.\w])(?:eval|exec|compile)\(|\bshell=True|\bos\.system\(|\bos\.popen\(",
    "archives": r"\btarfile\b|\bzipfile\b|\bunpack_archive\b|\bextractall\b",
    "yaml": r"yaml\.(?:load|unsafe_load|full_load)\(|yaml\.safe_load\(",
    "trust": r"trust_remote_code\s*=\s*True",
    "markup": r"\|\s*safe\b|autoescape=False",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_source_reads_what_can_run(name: str) -> None:
    """A word of these in a source needs another look at what it is given."""
    found = [
        f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for file in sorted(PACKAGE.rglob("*"))
        if file.suffix in (".py", ".j2") and file.is_file()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(FORBIDDEN[name], line) and not re.search(r"torch\.compile|\bre\.compile", line)
    ]
    assert found == []
