"""How the page looks and what its few lines of script do; colours are those of Okabe and Ito."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --grid: #d8dee4; --soft: #57606a;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00; --c5: #56b4e9 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --grid: #30363d;
  --soft: #9da7b3; --c0: #4aa3df } }
* { box-sizing: border-box }
body { font: 16px/1.6 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
.scroll { overflow-x: auto; max-width: 100% }
figure { margin: 1.5rem 0 } figcaption { color: var(--soft); max-width: 60rem }
figure svg[role] { display: block; min-width: 640px; width: 100%; max-width: 60rem; height: auto }
table { border-collapse: collapse; font-size: 14px; white-space: nowrap }
th, td { padding: .15rem .6rem; text-align: left; border-bottom: 1px solid var(--grid);
  font-variant-numeric: tabular-nums }
th button { font: inherit; font-weight: bold; color: inherit; background: none; border: 0;
  padding: 0; cursor: pointer }
th[aria-sort=ascending] button::after { content: " ▲" }
th[aria-sort=descending] button::after { content: " ▼" }
input { font: inherit; width: 16rem; max-width: 100% }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1rem;
  font-size: 14px }
.legend svg { width: 12px; height: 12px; margin-right: .3rem }
text { font: 11px system-ui, sans-serif; fill: currentColor }
line { stroke: currentColor } .grid { stroke: var(--grid) } .zero { stroke: var(--soft) }
.level { stroke: var(--soft); stroke-dasharray: 5 4 } .joined { opacity: .5 }
.c0 { color: var(--c0) } .c1 { color: var(--c1) } .c2 { color: var(--c2) } .c3 { color: var(--c3) }
.c4 { color: var(--c4) } .c5 { color: var(--c5) } .other { color: var(--soft); opacity: .45 }
.random, .reference { color: var(--soft) }
circle, polygon { fill: currentColor; stroke: currentColor }
.random polygon, .reference polygon { fill: var(--paper) }
g:hover, .other:hover { color: var(--ink); opacity: 1 }
"""

SCRIPT = """
const box = document.querySelector(".filter"), field = box.querySelector("input");
box.hidden = false;
field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase();
  for (const row of document.querySelectorAll("[data-row]"))
    row.style.display = row.dataset.row.toLowerCase().includes(wanted) ? "" : "none";
});
const value = (row, at) => row.cells[at].textContent;
const compare = (a, b) => {
  const [x, y] = [a, b].map(text => parseFloat(text.replace("<", "")));
  return isNaN(x) && isNaN(y) ? a.localeCompare(b) : isNaN(x) ? 1 : isNaN(y) ? -1 : x - y;
};
for (const head of document.querySelectorAll("th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.ariaSort !== "ascending", body = head.closest("table").tBodies[0];
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.ariaSort = up ? "ascending" : "descending";
    const rows = [...body.rows].sort((a, b) =>
      compare(value(a, head.cellIndex), value(b, head.cellIndex)) * (up ? 1 : -1));
    body.append(...rows);
  });
}
"""
