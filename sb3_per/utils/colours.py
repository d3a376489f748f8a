"""Colours of the pictures."""

#: Text, axes and lines of comparison, on white and on black pages.
INK = "#767676"

# They differ for every colour blindness, on white and on black pages: study/tests/test_figures.py.
BLUE, ORANGE, MAGENTA, CYAN, GREEN = "#2a5ff0", "#c68324", "#ae3077", "#04a0c0", "#077a3b"
PURPLE, SALMON, OLIVE, GREY = "#8a4fc4", "#e97c69", "#526f06", "#9b969e"
