"""Sources of Triton's Python models. `codetr.triton.repository` copies them; nothing imports them."""
