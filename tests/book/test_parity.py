"""Both languages: the same program, headings, equations, figures and citations, and Chinese that is up to date."""

import pytest

from book import parity
from book.project import pages


@pytest.mark.parametrize("page", pages())
def test_page(page):
    found = parity.problems(page)
    assert not found, "\n" + "\n".join(found)


def test_a_prose_edit_is_seen_and_a_reflow_is_not(tmp_path, monkeypatch):
    pages_of = {"en": tmp_path / "en.md", "zh": tmp_path / "zh.md"}
    monkeypatch.setattr(parity, "page_path", lambda language, page: pages_of[language])

    def hashes(text):
        pages_of["en"].write_text(text, encoding="utf-8")
        parity.sections.__globals__["read_cells"].cache_clear()
        return parity.prose_hashes("any")

    before = hashes("(a)=\n# A\n\none two\nthree\n\n(a-b)=\n## B\n\nfour\n")
    assert hashes("(a)=\n# A\n\none\ntwo three\n\n(a-b)=\n## B\n\nfour\n") == before
    after = hashes("(a)=\n# A\n\none two\nthree\n\n(a-b)=\n## B\n\nfive\n")
    assert after["a"] == before["a"] and after["a-b"] != before["a-b"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("每个令牌都有概率。", "'令牌'"),
        ("用PyTorch 写。", "a space is missing in '用P'"),
        ("共 3个头。", "a space is missing in '3个'"),
        ("**先归一化，**再相乘。", "put the punctuation outside the bold"),
        ("第一行没有写完，\n第二行接着写。", "one paragraph a line"),
    ],
)
def test_chinese_typography(tmp_path, monkeypatch, line, problem):
    path = tmp_path / "zh.md"
    path.write_text(f"(a)=\n# 标题\n\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(parity, "page_path", lambda language, page: path)
    found = parity.check_chinese("any")
    assert len(found) == 1 and problem in found[0]


def test_code_math_and_links_are_not_prose(tmp_path, monkeypatch):
    path = tmp_path / "zh.md"
    path.write_text("(a)=\n# 标题\n\n令 $x$ 为`q_proj`，见 [文](a.md)，\n\n```\n用PyTorch写\n```\n", encoding="utf-8")
    monkeypatch.setattr(parity, "page_path", lambda language, page: path)
    assert parity.check_chinese("any") == []
