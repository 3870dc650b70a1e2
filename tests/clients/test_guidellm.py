"""guidellm as a load generator: a bounded run without errors, counted alike by both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagewire.model_source import resolve_model
from tests.clients.environments import environment, run
from tests.clients.served import API_KEY, MODEL, Served
from tokenizer_svc.gguf_tokenizer import convert_gguf

NUM_REQUESTS, OUTPUT_TOKENS = 8, 8


def counted(served: Served) -> dict[str, float]:
    """What the stack has counted so far."""
    found = {"requests": 0.0, "prompt": 0.0, "output": 0.0}
    counters = {
        "pagewire:request_success_total": "requests",
        "pagewire:prompt_tokens_total": "prompt",
        "pagewire:generation_tokens_total": "output",
    }
    with served.http() as http:
        text = http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in counters:
                found[counters[sample.name]] += sample.value
    return found


def generate_load(guidellm: Path, served: Served, folder: Path) -> dict[str, Any]:
    """Run it with a tokenizer in Hugging Face's form, made here; return its report."""
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    for name, content in convert_gguf(resolve_model(MODEL).path).items():
        (tokenizer / name).write_bytes(content)
    command = [
        *(str(guidellm / "bin" / "guidellm"), "run", "--disable-progress"),
        *(
            "--backend",
            f"kind=openai_http,target={served.http_url},model={MODEL},api_key={API_KEY}",
        ),
        *("--profile", "kind=concurrent,streams=2"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=24,output_tokens={OUTPUT_TOKENS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
    ]
    more = {"GUIDELLM__DEFAULT_RESULTS_DIR": str(folder), "HF_HOME": str(folder / "cache")}
    run(command, served, folder, **more)
    report: dict[str, Any] = json.loads((folder / "benchmarks.json").read_text())
    return report


@pytest.mark.timeout(1500)
def test_a_load_has_no_errors_and_both_sides_count_the_same(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    guidellm = environment("guidellm")
    served: Served = request.getfixturevalue("served")
    before = counted(served)
    report = generate_load(guidellm, served, tmp_path)
    after = {name: value - before[name] for name, value in counted(served).items()}

    (benchmark,) = report["benchmarks"]
    made = benchmark["metrics"]["request_totals"]
    assert (made["successful"], made["errored"]) == (NUM_REQUESTS, 0)
    requests = benchmark["requests"]["successful"]
    assert after == {
        "requests": NUM_REQUESTS,
        "prompt": sum(each["prompt_tokens"] for each in requests),
        "output": sum(each["output_tokens"] for each in requests),
    }
    assert after["output"] == NUM_REQUESTS * OUTPUT_TOKENS
