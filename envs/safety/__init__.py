"""Safety-Gymnasium, bit-identical to stock and faster, and what reads its observations."""
