# Marks the plain comments of the public headers for Doxygen (scripts/site): of the file, before a declaration, and
# behind one. Drops titles of sections.
/^ *\(\/\*\|\/\/\) ----/d
1s|^// |/// @file\n/// |
1s|^/\* |/** @file\n * |
s|^\( *\)// |\1/// |
s|^\( *\)/\* |\1/** |
s|^\( *[^ /*#].*[^ /]\)  *// |\1 ///< |
s|^\( *[^ /*#].*[^ /]\)  */\* |\1 /**< |
