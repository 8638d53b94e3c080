// A small bitmap font, so that labels need no font file and no library.
#pragma once

namespace codetr {

inline constexpr int kGlyphWidth = 5, kGlyphHeight = 9;
inline constexpr int kGlyphAscent = 7;  // rows above the base line

// Whether a letter has a pixel at column x, row y. What is not printable ASCII is a question mark.
bool glyph_pixel(char letter, int x, int y);

}  // namespace codetr
