"""The style sheet of the report's HTML pages.

All colours are variables, in two sets: for light screens and paper, and for
dark screens. Each colour of text has a contrast of at least 4.5 to each colour
of a background, and lines of at least 3 (WCAG 2.2, 1.4.3 and 1.4.11). Figures
are on white in both sets.
"""

LIGHT = {'text': '#1b1d21', 'muted': '#4a4f58', 'link': '#0b4fa8',
         'page': '#ffffff', 'surface': '#f2f4f7', 'warning': '#fff0c2',
         'line': '#878d97', 'shadow': '#c3c9d2'}
DARK = {'text': '#e9eaec', 'muted': '#b9bdc4', 'link': '#8fbcff',
        'page': '#16181c', 'surface': '#24272d', 'warning': '#4a3600',
        'line': '#7d838d', 'shadow': '#3f4550'}


def _variables(colors):
  return ' '.join(f'--{name}: {value};' for name, value in colors.items())


CSS = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ {_variables(DARK)} }}
}}
""" + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica,
    Arial, sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .5rem 0 1rem; }
h2 {
  font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 .75rem;
  padding-top: .75rem; border-top: 1px solid var(--line);
}
h1, h2, p, li, figcaption, caption { overflow-wrap: break-word; }
p, ul, pre { margin: 0 0 1rem; }
p, ul { max-width: 46rem; }
ul { padding-left: 1.4rem; }
li { margin: .2rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
code, pre {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .875em;
}
code {
  background: var(--surface); border-radius: .2rem; padding: .1em .25em;
  overflow-wrap: anywhere; -webkit-box-decoration-break: clone;
  box-decoration-break: clone;
}
pre {
  background: var(--surface); border-radius: .3rem; padding: .75rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.banner {
  max-width: none; margin: 0 0 1.5rem; padding: .9rem 1.1rem;
  background: var(--warning); border: 2px solid var(--line);
  border-radius: .3rem; font-size: 1.4rem; line-height: 1.35; font-weight: 700;
}
nav { margin: 1.5rem 0; }
nav p { margin: 0 0 .3rem; font-weight: 700; }
nav ul { columns: 20rem; max-width: none; }
nav li { margin: 0; padding: .15rem 0; break-inside: avoid; }
.scroll {
  overflow-x: auto; margin: 1.25rem 0 1.75rem; container-type: inline-size;
  background:
    linear-gradient(to left, var(--page) 50%, transparent) right / 3rem 100%
      no-repeat local,
    linear-gradient(to left, var(--shadow), transparent) right / .75rem 100%
      no-repeat scroll;
}
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 .5rem; }
caption span {
  display: block; position: sticky; left: 0; max-width: min(100cqi, 46rem);
}
th, td {
  padding: .4rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); max-width: 26rem;
}
th { font-weight: 400; }
thead th, thead td {
  font-weight: 700; vertical-align: bottom; border-bottom-width: 2px;
}
.number { text-align: right; }
td.number, .short, code span, pre span { white-space: nowrap; }
.long { min-width: 15rem; }
.named tr > :first-child {
  position: sticky; left: 0; background: var(--page);
}
.figures { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1.25rem 0; }
figure { margin: 0; flex: 1 1 20rem; min-width: 0; max-width: 30rem; }
.card {
  background: #ffffff; color: #1b1d21; border: 1px solid var(--line);
  border-radius: .3rem; padding: .25rem;
}
svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: .925rem; margin-top: .5rem; }
@media (max-width: 40rem) {
  h1 { font-size: 1.6rem; }
  .banner { font-size: 1.2rem; }
  th, td { padding: .35rem .5rem; }
}
@media print {
  main { max-width: none; padding: 0; }
  nav { display: none; }
  .scroll { overflow: visible; container-type: normal; background: none; }
  caption span { max-width: none; position: static; }
  table { font-size: .75rem; }
  th, td { padding: .25rem .35rem; }
  /* Paper does not scroll, so wide tables break their lines. */
  td.number, .short, td code span { white-space: normal; }
  .long { min-width: 0; }
  tr, figure, pre { break-inside: avoid; }
  thead { display: table-header-group; }
  h2 { break-after: avoid; }
  .banner, code, pre {
    -webkit-print-color-adjust: exact; print-color-adjust: exact;
  }
}
"""
