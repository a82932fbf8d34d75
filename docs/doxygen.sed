# Makes documentation comments of ordinary ones, as doxygen reads them.
# The comment at the beginning of a file is about the file.
1s|^// |/// \\file\n/// |
# Comments for tools, headings and empty ones document nothing.
s|[[:space:]]*// NOLINT.*$||
s|[[:space:]]*// IWYU.*$||
/^[[:space:]]*\/\/ ---/d
s|;[[:space:]]*//[[:space:]]*$|;|
s|^}[[:space:]]*//.*$|}|
# Macros that only other macros use; the last one ends its file.
/^#define DT_CONCAT/d
/^#define DT_ASSIGN_OR_RETURN_INNER/,$d
# Destructors and deleted copies have nothing to say.
/^[[:space:]]*(virtual )?~/d
/= delete;$/d
# A forward declaration has no page of its own.
s|^((class\|struct) [A-Za-z]+;)[[:space:]]*//.*$|\1|
# Code in a comment is indented by four columns.
s|^([[:space:]]*)//   |\1///     |
s|^([[:space:]]*)//( .*)?$|\1///\2|
s|^(.*[^[:space:]/].*[^/:])// |\1///< |
# Members of one declaration share its comment.
s|^([[:space:]]+)([a-zA-Z:_]+) ([a-z_]+), ([a-z_]+), ([a-z_]+);[[:space:]]*(///< .*)$|\1\2 \3;  \6\n\1\2 \4;  \6\n\1\2 \5;  \6|
