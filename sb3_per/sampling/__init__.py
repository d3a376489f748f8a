"""Who gets drawn: structures that hold masses and draw from them. They know numbers, not transitions."""
