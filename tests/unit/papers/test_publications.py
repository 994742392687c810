"""A publication named by a study is validated before any job runs."""

from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.papers.publications import KINDS, Publication, PublishedClaim, TableClaims, load_publications
from phaze.spec.files import FOLDER
from phaze.spec.study import Study

CONFIG = yaml.safe_load((FOLDER / "config.yaml").read_text())
LONG = "x" * 5000
PARTS = ("report", "plans", "tiled", "maps")


def naming(part: str, name: str | None) -> Study:
    """Return the default study with a publication named by one of its parts."""
    return Study.parse(CONFIG | {part: {"published": name}}, "study.yaml")


@pytest.mark.parametrize("name", [LONG, f"a/{LONG}", "a\0b", "", "palm-2042"])
@pytest.mark.parametrize("part", PARTS)
def test_a_name_that_no_file_has_is_one_message(part: str, name: str) -> None:
    with pytest.raises(PhazeError) as error:
        load_publications(naming(part, name))
    assert len(str(error.value)) < 1000
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", sorted((FOLDER / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_publications_of_the_studies_that_come_with_phaze_are_valid(path: Path) -> None:
    own = yaml.safe_load(path.read_text())
    named = {
        part: {"published": own[part]["published"]} for part in PARTS if "published" in own.get(part, {})
    }
    found = load_publications(Study.parse(CONFIG | named, "study.yaml"))
    assert set(found) == {*named}
    for part, plain in found.items():  # as jobs read them
        assert KINDS[part].parse(plain, "published").model_dump(mode="json") == plain


def test_a_publication_of_another_kind_is_refused() -> None:
    with pytest.raises(PhazeError, match=r"piper-neurips-2021\.yaml: .*is not a known key"):
        load_publications(naming("tiled", "piper-neurips-2021"))


def test_the_page_of_publications_names_every_key() -> None:
    page = (FOLDER / "published/README.md").read_text()
    for noun in (Publication, TableClaims, PublishedClaim):
        assert [key for key in noun.model_fields if f"`{key}`" not in page] == []
