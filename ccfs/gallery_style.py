"""The gallery's style sheet: one set of colours for light, one for dark; narrow screens get one column."""

from __future__ import annotations

__all__ = ["COLOURS", "STYLE"]

COLOURS = 6
"""Number of label colours, --s0 to --s5."""

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --card: #f6f8fa; --ink: #1b1f24; --muted: #59636e; --line: #d8dee4;
  --good: #116b3a; --bad: #a3261b; --s0: #0f766e; --s1: #0b62c4; --s2: #8a6100; --s3: #7c3aed; --s4: #be185d;
  --s5: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f1318; --card: #171d24; --ink: #e6ebf1; --muted: #98a4b0;
  --line: #303a45; --good: #6fdc9b; --bad: #ff9d94; --s0: #2dd4bf; --s1: #62aaff; --s2: #e3b341; --s3: #b79cff;
  --s4: #f778ba; --s5: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem clamp(.9rem, 4vw, 2.5rem) 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 0 0 .3rem; font-size: 1.35rem; overflow-wrap: anywhere; }
h3 { margin: 0 0 .3rem; font-size: 1.02rem; }
p { max-width: 46rem; margin: .5rem 0; overflow-wrap: anywhere; }
section { margin-top: 2.2rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.verdict { padding: .8rem 1rem; border-radius: .4rem; background: var(--card); border-left: .3rem solid var(--good);
  color: var(--ink); font-weight: 400; }
.verdict.bad { border-left-color: var(--bad); }
.verdict.bad b { color: var(--bad); }
.plots { display: grid; gap: 1.2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr));
  margin: 1rem 0; }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: .5rem; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .9rem; color: var(--muted); margin-top: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
thead th { color: var(--muted); font-weight: 500; }
.n { white-space: nowrap; }
.why { min-width: 16rem; }
pre { overflow-x: auto; padding: .8rem 1rem; border-radius: .4rem; background: var(--card); font-size: .82rem; }
.scale { margin: .2rem 0 0; font-size: .82rem; color: var(--muted); text-align: center; max-width: none; }
.bar { display: inline-block; width: 45%; height: .6rem; border-radius: .2rem; vertical-align: baseline; }
svg text { font-size: 12px; fill: var(--muted); }
svg .name { fill: var(--ink); }
svg .axis { stroke: var(--muted); fill: none; }
svg .label { fill: var(--c); opacity: .3; }
svg .band { fill: var(--c); opacity: .14; }
svg .outline { fill: none; stroke: var(--ink); stroke-width: 1.2; }
svg .outline.bright { stroke: #fff; stroke-opacity: .85; }
svg .center { fill: var(--ink); stroke: var(--ground); stroke-width: 1.5; }
svg .sound { fill: none; stroke: var(--good); stroke-width: 2; }
svg .unsound { fill: none; stroke: var(--bad); stroke-width: 2; stroke-dasharray: 6 4; }
svg .thick { stroke-width: 5; }
svg .decision { fill: none; stroke: var(--ink); stroke-width: 1.3; stroke-dasharray: 3 3; }
svg .change { stroke: var(--bad); stroke-width: 3; }
svg .level { fill: none; stroke: #111; stroke-width: 1.4; }
svg .curve { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .rule { stroke: var(--muted); stroke-dasharray: 5 4; }
svg .failing { fill: var(--bad); opacity: .22; }
"""
