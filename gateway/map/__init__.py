"""The live map: which boxes there are, how they fare, and which one limits all the others.

Once a second it looks at what heartbeats and load reports have brought anyway, keeps two minutes of
it, and judges the last seconds by written rules (docs/map.md). It asks nobody for anything.
"""
