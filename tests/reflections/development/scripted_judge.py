"""A server whose answers are known: it writes as the prompt says, judges what it wrote, and improves the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everytoken.reflections.development import DIMENSIONS
from everytoken.reflections.ranks import GenerationPlan
from everytoken.shards import Artifact
from tests.reflections.fault_server import FaultServer
from tests.reflections.generated import BASE, ROOT, openai_generator, parameters, plan_of

ALIAS = "smollm2-135m-instruct"
PLACES = "{charter}\n\n{writing_guidelines}\n"
QUALITY = re.compile(r"Write (\w+) texts")


def prompt(quality: str) -> str:
    return f"Write {quality} texts.\n\n{PLACES}"


def write_prompts(folder: Path, *qualities: str) -> Path:
    """Write v1, v2, ...: prompts that ask for texts of a quality."""
    (folder / ALIAS).mkdir(parents=True, exist_ok=True)
    for number, quality in enumerate(qualities, 1):
        (folder / ALIAS / f"reflection_v{number}.md").write_text(prompt(quality))
    return folder


def judgement(*scores: int) -> str:
    said = {"scores": dict(zip(DIMENSIONS, scores, strict=True)), "reasoning": f"it earns {scores[0]}"}
    return json.dumps({"reflection_1p": said, "reflection_3p": said})


def role(body: dict[str, Any]) -> str:
    system = body["messages"][0]["content"]
    if system.startswith("You judge"):
        return "judge"
    return "improve" if system.startswith("You improve") else "generate"


Scores = Callable[[str, str], tuple[int, ...]]
"""From the quality of a text and the question to the judge: the four scores."""


def script(scores: Scores, better: str = "careful") -> Callable[[dict[str, Any], int], Any]:
    """Return the answers of the server: texts name the quality that their prompt asked for."""

    def answer(body: dict[str, Any], asked: int) -> Any:
        system, user = (message["content"] for message in body["messages"])
        match role(body):
            case "judge":
                quality = re.search(r"a (\w+) thought", user)
                assert quality is not None
                return judgement(*scores(quality[1], user))
            case "improve":
                return f"Here it is.\n<prompt>\n{prompt(better)}</prompt>"
            case _:
                found = QUALITY.search(system)
                assert found is not None
                text = f"a {found[1]} thought [1.1]"
                return json.dumps({"analysis": "short", "reflection_1p": text, "reflection_3p": f"{text} of it"})

    return answer


def questions(server: FaultServer, kind: str | None = None) -> int:
    """Return how many questions the server got, without its trials."""
    asked = [body for body in server.bodies if len(body["messages"]) == 2]
    return sum(kind is None or role(body) == kind for body in asked)


def development(**changes: Any) -> dict[str, Any]:
    given = BASE["development"] | {"items": 8, "examples": 3, **changes}
    return given | {name: str(ROOT / given[name]) for name in ("rubric", "templates")}


def development_plan(
    built: tuple[Artifact, Artifact], server: FaultServer, prompts: Path, run: str = "reflections", **changes: Any
) -> GenerationPlan:
    files = BASE["prompts"] | {"folder": str(prompts)} | changes.pop("files", {})
    generator = openai_generator(server.address, **changes.pop("generator", {}))
    given = {"prompts": files, "development": development(**changes.pop("development", {})), **changes}
    return plan_of(run, built, parameters(generator, **given))
