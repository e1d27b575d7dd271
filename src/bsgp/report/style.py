"""The style of all figures: few lines, and colours that colour-blind readers can tell apart (Okabe and Ito)."""

BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("-", "--", "-.", ":")
INK, GREY, PALE = "#1f2933", "#7b8794", "#e4e7eb"
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.formatter.limits": (-4, 7),
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "bsgp",  # two reports of one model are the same file
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
}
