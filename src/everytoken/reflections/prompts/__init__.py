"""What a generator is asked: prompt files, constitution, messages."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.prompts.builder import RequestBuilder
    from everytoken.reflections.prompts.constitution import (
        constitution_sections,
        require_sections,
        section_headings,
    )
    from everytoken.reflections.prompts.files import (
        CHARTER,
        TextFile,
        filled,
        placeholders_of,
        prompt_path,
        read_prompt,
        read_text_file,
        read_version,
    )
    from everytoken.reflections.prompts.messages import chat
    from everytoken.reflections.prompts.requests import AskedRow, DocumentRequest, SidecarRow, Skipped
    from everytoken.reflections.prompts.styles import draw_style, parse_styles
    from everytoken.reflections.prompts.versions import (
        first_version,
        prompt_versions,
        require_placeholders,
        with_version,
        write_version,
    )

__getattr__, __dir__ = exports(__name__, __file__)
