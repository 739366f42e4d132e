// Comfort only: everything is on the page without this. Light or dark by hand, tables sorted and filtered.
"use strict";
(() => {
  const root = document.documentElement, KEY = "moelab-report-theme";
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* private mode: this page only */ } };
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

  function themeButton(menu) {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const button = make("button", { type: "button", className: "theme" });
    const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
    button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; store(root.dataset.theme); name(); });
    system.addEventListener("change", name);
    name();
    menu.append(button);
  }

  // What a cell sorts by: its first line, as a number in a column of numbers.
  const shown = (row, column) => {
    const cell = row.cells[column];
    return (cell.querySelector(".v, a") ?? cell).textContent.trim();
  };
  const names = new Intl.Collator("en", { numeric: true });
  const number = (text) => { const found = parseFloat(text.replace(/[\u202f\u2009,]/g, "")); return Number.isNaN(found) ? -Infinity : found; };

  function sortable(table) {
    const body = table.tBodies[0], original = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const numeric = head.classList.contains("n");
      const button = make("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        // Numbers start with the largest, names with the first; the third click gives the order of the report.
        const order = numeric ? ["descending", "ascending", null] : ["ascending", "descending", null];
        const next = order[(order.indexOf(now) + 1) % 3];
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        const compare = (a, b) => sign * (numeric
          ? (number(shown(a, column)) - number(shown(b, column)) || 0)
          : names.compare(shown(a, column), shown(b, column)));
        body.append(...(next ? [...original].sort(compare) : original));
      });
    });
  }

  function filterable(table) {
    const rows = [...table.tBodies[0].rows], scroll = table.closest(".scroll");
    const input = make("input", { type: "search", placeholder: "Filter rows" });
    input.setAttribute("aria-label", `Filter rows of: ${table.caption.textContent}`);
    const told = make("span", { className: "note" });
    told.setAttribute("role", "status");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const left = rows.filter((row) => !row.hidden).length;
      told.textContent = words.length ? `${left} of ${rows.length} rows` : "";
    });
    const line = make("p", { className: "filter" });
    line.append(input, told);
    scroll.before(line);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const menu = document.querySelector(".menu");
    if (menu) themeButton(menu);
    for (const table of document.querySelectorAll("main table")) {
      const rows = table.tBodies[0].rows.length;
      if (rows > 3) sortable(table);
      if (rows > 11) filterable(table);
    }
  });
})();
