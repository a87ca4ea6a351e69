/* Language link, and boxes that scroll sideways: reachable by keyboard. */
"use strict";

(() => {
  const remember = (language) => {
    try { localStorage.setItem("language", language); } catch { /* storage may be forbidden */ }
  };

  /* The other language opens at the same section; the choice holds for the root page. */
  const prepareLanguageLink = () => {
    for (const link of document.querySelectorAll("a[data-language]")) {
      link.addEventListener("click", () => {
        remember(link.dataset.language);
        link.hash = location.hash;
      });
    }
  };

  const SCROLLERS = ".highlight pre, .pst-scrollable-table-container, .cell_output .output, mjx-container";

  /* A box wider than its place takes the focus, so that arrow keys scroll it. */
  const markScrollers = () => {
    for (const box of document.querySelectorAll(SCROLLERS)) {
      const wide = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).display !== "inline";
      if (wide) {
        box.tabIndex = 0;
        box.dataset.scrolls = "";
      } else if ("scrolls" in box.dataset) {
        box.removeAttribute("tabindex");
        delete box.dataset.scrolls;
      }
    }
  };

  /* An inline formula wider than a phone scrolls by itself. */
  const markWideFormulas = () => {
    for (const formula of document.querySelectorAll("mjx-container:not([display])")) {
      formula.classList.remove("wide");
      const room = formula.closest("p, li, td, dd, summary, figcaption, div");
      if (room && formula.getBoundingClientRect().width > room.clientWidth) formula.classList.add("wide");
    }
  };

  const measure = () => {
    markWideFormulas();
    markScrollers();
  };

  document.addEventListener("DOMContentLoaded", () => {
    prepareLanguageLink();
    measure();
    window.addEventListener("resize", measure);
    window.addEventListener("load", () => {
      const typeset = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
      if (typeset) typeset.then(measure);
    });
    document.fonts.addEventListener("loadingdone", measure);
    document.addEventListener("toggle", measure, true);
  });
})();
