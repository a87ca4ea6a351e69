"""Search in Chinese: the index holds words and single characters; the browser cuts the query with the index's words."""

import logging
import re

import jieba
import snowballstemmer
from sphinx.search.zh import SearchChinese

HAN = re.compile(r"[\u3400-\u9fff]+")
LATIN = re.compile(r"[a-zA-Z0-9_\u00c0-\u024f\u0370-\u03ff]+")

# Forward maximum matching against the loaded index; a character that begins no word stands alone.
SPLITTER = """
function splitQuery(query) {
  const index = (typeof Search !== "undefined" && Search._index) || {terms: {}, titleterms: {}};
  const known = (word) => Object.hasOwn(index.terms, word) || Object.hasOwn(index.titleterms, word);
  const words = [];
  for (const run of query.match(/[\\u3400-\\u9fff]+|[a-zA-Z0-9_\\u00c0-\\u024f\\u0370-\\u03ff]+/g) || []) {
    if (!/[\\u3400-\\u9fff]/.test(run)) { words.push(run); continue; }
    for (let start = 0; start < run.length;) {
      let end = Math.min(run.length, start + 8);
      while (end > start + 1 && !known(run.slice(start, end))) end--;
      words.push(run.slice(start, end));
      start = end;
    }
  }
  return words;
}
"""


class ChineseSearch(SearchChinese):
    """Words by jieba, each Han character, and Latin words; stemmed like the browser's Porter stemmer."""

    js_splitter_code = SPLITTER

    def init(self, options: dict[str, str]) -> None:
        """Load the dictionary quietly."""
        jieba.setLogLevel(logging.WARNING)
        self.stemmer = snowballstemmer.stemmer("porter")  # Sphinx's own choice here differs from the browser's

    def split(self, input: str) -> list[str]:
        """Cut a text into the words that the index holds."""
        words = LATIN.findall(input)
        for run in HAN.findall(input):
            words += [*jieba.cut_for_search(run), *run]
        return words

    def word_filter(self, stemmed_word: str) -> bool:
        """Single Han characters count, single Latin letters do not."""
        return len(stemmed_word) > 1 or bool(HAN.match(stemmed_word))

    def stem(self, word: str) -> str:
        """Latin words lose their endings, Chinese ones are what they are."""
        return word if HAN.match(word) else super().stem(word)
