"""The first version of a prompt, from a template, the constitution and the guidelines."""

from __future__ import annotations

from pathlib import Path

from everytoken.reflections.development.candidates import development_of
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.prompts import (
    first_version,
    prompt_versions,
    read_text_file,
    require_sections,
    section_headings,
    write_version,
)
from everytoken.reflections.ranks import GenerationPlan
from everytoken.reflections.registry import find_generation_run


def seed_prompt(plan: GenerationPlan) -> Path:
    """Write v1 of the prompt of a run for its generator; return its file.

    Raises:
        ReflectionError: the generator has a prompt of the kind, or a file cannot be used.
    """
    run, _ = find_generation_run(plan.name)
    given, files, alias = development_of(plan), plan.parameters.prompts, plan.parameters.generator.alias
    if run.charter_column is None:
        raise ReflectionError(f"a {run.prompt} prompt has no constitution to be made from: write the file by hand")
    if versions := prompt_versions(files, run.prompt, alias):
        raise ReflectionError(
            f"{alias} has prompts of the kind {run.prompt}: {', '.join(versions)}. Write the next one "
            "(everytoken prompts improve), or give the generator another alias (reflection.generator.alias)"
        )
    charter = read_text_file(Path(files.constitution))
    require_sections(charter.text, charter.path)
    read_text_file(Path(files.guidelines))
    template = read_text_file(Path(given.templates) / f"seed_{run.prompt}.md")
    values = {
        "sections": "; ".join(section_headings(charter.text)),
        "fields": ", ".join(run.fields(third_person=plan.parameters.include_reflection_3p)),
    }
    text = first_version(template.text, run.prompt, template.path, values)
    return write_version(files, run.prompt, alias, "v1", text)
