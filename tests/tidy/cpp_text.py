"""Reads C++ as far as shape_test.py needs it: which names a file declares, which it uses, and how long
its functions are. It is no compiler: no preprocessor runs, and names are not looked up in scopes."""
import bisect
import collections
import re

BLANKED = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/'  # Comments.
    r'|(?:u8|[uUL])?R"([^(\s]*)\(.*?\)\1"'  # Raw strings.
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)  # 1'000 holds no character.
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|[0-9](?:'?[\w.])*|\S")
NAME = re.compile(r"[A-Za-z_]\w*$")
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
# The parentheses after these hold no parameters.
NO_FUNCTION = {"alignas", "decltype", "noexcept", "explicit", "requires", "__attribute__", "__launch_bounds__",
               "__align__"}
KEYWORDS = NO_FUNCTION | {
    "auto", "bool", "char", "class", "const", "constexpr", "consteval", "constinit", "double", "enum", "extern",
    "final", "float", "friend", "inline", "int", "long", "mutable", "namespace", "operator", "override", "short",
    "signed", "static", "struct", "template", "thread_local", "typedef", "typename", "union", "unsigned", "using",
    "virtual", "void", "volatile", "default", "delete", "public", "private", "protected", "co_await", "this"}


def _blank(match):
    text = match.group(0)
    return (" " if text[0] == "/" else '""') + "\n" * text.count("\n")


def without_comments_and_strings(text):
    """The text with blanks for them. Lines keep their numbers."""
    return BLANKED.sub(_blank, text)


class Source:
    """One file. `functions` holds (name, lines of its body), `members` the number of each class's data
    members, `declared` holds (name, whether it is a function), and `used` holds (name, the token after it, the
    names in whose definition it stands). All of this is uncertain where braces do not pair, as with directives that
    choose among them: then `is_balanced` is false."""

    def __init__(self, text):
        text = without_comments_and_strings(text)
        self.functions, self.declared, self.used = [], [], []
        self.members = collections.Counter()
        for directive in DIRECTIVE.findall(text):
            self._directive(directive)
        text = DIRECTIVE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
        found = list(TOKEN.finditer(text))
        self._tokens = [match.group(0) for match in found]
        ends = [match.start() for match in re.finditer("\n", text)]
        self._lines = [bisect.bisect(ends, match.start()) + 1 for match in found]
        self._at = 0
        self.is_balanced = True
        if self._scope(()):
            self.is_balanced = False

    def _directive(self, text):
        words = TOKEN.findall(text)[1:]
        if not words or words[0] == "include":
            return
        if words[0] == "define":
            self.declared.append((words[1], False))
            words = words[1:]
        for name, after in zip(words[1:], [*words[2:], ""]):
            if NAME.match(name):
                self.used.append((name, after, (words[0],)))

    def _use(self, tokens, within):
        for i, name in enumerate(tokens):
            designator = i > 1 and tokens[i - 1] == "." and tokens[i - 2] in ("{", ",")  # {.name = 1}
            if NAME.match(name) and name not in KEYWORDS and not designator:
                self.used.append((name, (*tokens[i + 1:i + 2], "")[0], within))

    def _group(self):
        """Takes the tokens from an opening bracket to its partner."""
        opening, begin, depth = self._tokens[self._at], self._at, 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            depth += (token == opening) - (token == CLOSING[opening])
            self._at += 1
            if depth == 0:
                return self._tokens[begin:self._at]
        self.is_balanced = False
        return self._tokens[begin:]

    def _closed_scope(self, within):
        if not self._scope(within):
            self.is_balanced = False

    def _scope(self, within):
        """Reads declarations up to the brace that closes a namespace or class. False: there was none."""
        head = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token == "}":
                self._at += 1
                return True
            if token == "{":
                head = self._braces(head, within)
            elif token == ";":
                self._declaration(head, within)
                head = []
                self._at += 1
            elif token == "template" and not head:
                self._at += 1
                self._use(self._group()[1:], within)
            elif token in ("[", "("):
                head += self._group()
            elif token == ":" and head and head[-1] in ("public", "private", "protected"):
                head = []
                self._at += 1
            else:
                head.append(token)
                self._at += 1
        self._declaration(head, within)
        return False

    def _braces(self, head, within):
        """Reads what a brace opens. Returns the part of the declaration that goes on behind it."""
        shape = Head(head)
        if shape.kind == "namespace":
            self._at += 1
            self._closed_scope(within)
            return []
        if shape.kind == "class":
            self.declared.append((shape.name, False))
            self._use(shape.others, (*within, shape.name))
            self._at += 1
            self._closed_scope((*within, shape.name))
            return []
        if shape.kind == "enum":
            if "class" in head:  # The name of another is only a place for its enumerators.
                self.declared.append((shape.name, False))
            self._enumerators(self._group(), (*within, shape.name))
            return []
        if shape.kind == "function" and not shape.initializes(head):
            begin = self._lines[self._at]
            body = self._group()
            self._function(shape, within)
            self._use(body, (*within, *shape.qualifiers, shape.name))
            self.functions.append((shape.name, self._lines[self._at - 1] - begin + 1))
            return []
        return head + self._group()

    def _enumerators(self, body, within):
        before = "{"
        for token in body[1:-1]:
            if NAME.match(token):
                if before in ("{", ","):
                    self.declared.append((token, False))
                else:
                    self.used.append((token, "", within))
            before = token

    def _function(self, shape, within):
        if shape.name and shape.name not in (*within, *shape.qualifiers):  # It is no constructor.
            self.declared.append((shape.name, True))
        self._use(shape.others, (*within, *shape.qualifiers, shape.name))

    def _declaration(self, head, within):
        shape = Head(head)
        if shape.kind == "function":
            self._function(shape, within)
        elif shape.kind in ("class", "enum", "variable", "alias") and shape.name:
            if "friend" not in head:
                self.declared.append((shape.name, False))
            if within and shape.kind == "variable" and "static" not in head:
                self.members["::".join(within)] += 1
            self._use(shape.others, (*within, *shape.qualifiers, shape.name))
        else:
            self._use(head, within)


class Head:
    """The part of a declaration before its body or its semicolon."""

    def __init__(self, tokens):
        self.name, self.qualifiers, self.others, self.after = "", (), list(tokens), 0
        outer = list(self._outer(tokens))
        words = [token for _, token in outer]
        self.kind = self._kind(words)
        if self.kind == "alias":
            self._named(tokens, tokens.index("=") - 1)
        elif self.kind in ("class", "enum"):
            self._class(outer, tokens)
        elif self.kind == "function":
            place = next(i for i, _ in self._parameters(outer))
            self.after = place
            self._named(tokens, place - 1)
        elif self.kind == "variable":
            ends = [i for i, token in outer if token in ("=", "[", "{")]
            self._named(tokens, (ends[0] if ends else len(tokens)) - 1)

    @staticmethod
    def _outer(tokens):
        """(place, token) of those in no parentheses, template arguments or attributes."""
        depth, angles, value = 0, 0, False
        for i, token in enumerate(tokens):
            if depth == 0 and angles == 0:
                yield i, token
            if token in "([{":
                depth += 1
            elif token in ")]}":
                depth -= 1
            elif depth == 0 and token == "=" and angles == 0:
                value = True
            elif depth == 0 and not value and token == "<" and i and tokens[i - 1] != "operator":
                angles += 1
            elif depth == 0 and angles and token == ">":
                angles -= 1

    @staticmethod
    def _parameters(outer):
        before = (0, "")
        for i, token in outer:
            if token == "(" and before[1] not in NO_FUNCTION:
                yield i, token
            before = (i, token)

    def _kind(self, words):
        outer = list(enumerate(words))
        if "namespace" in words or words == ["extern", '"', '"']:  # extern "C"
            return "namespace" if "=" not in words else "other"
        if "using" in words or "static_assert" in words[:1]:
            return "alias" if "=" in words else "other"
        value = words.index("=") if "=" in words and "operator" not in words else len(words)
        if any(i < value for i, _ in self._parameters(outer)):
            return "function"
        for kind in ("enum", "class", "struct", "union"):
            if kind in words[:value]:
                return "enum" if kind == "enum" else "class"
        return "variable" if words else "other"

    def _class(self, outer, tokens):
        place = next(k for k, (_, token) in enumerate(outer) if token in ("enum", "class", "struct", "union"))
        for i, token in outer[place + 1:]:
            if token == ":":
                break
            if NAME.match(token) and token not in KEYWORDS:
                self.name = token
                self.others = tokens[:i] + tokens[i + 1:]

    def _named(self, tokens, last):
        """Takes the name that ends at `last`, with its qualifiers `A::B::`."""
        if last >= 0 and tokens[last] == ">":  # foo<int>(
            while last > 0 and tokens[last] != "<":
                last -= 1
            last -= 1
        if last < 0 or not NAME.match(tokens[last]) or tokens[last] in KEYWORDS or "operator" in tokens[:last]:
            return
        if last and tokens[last - 1] == "~":
            return
        self.name, first = tokens[last], last
        while first >= 2 and tokens[first - 1] == "::" and NAME.match(tokens[first - 2]):
            first -= 2
        self.qualifiers = tuple(tokens[first:last:2])
        self.others = tokens[:first] + tokens[last + 1:]

    def initializes(self, head):
        """Whether a brace after this head begins a member's value, not the constructor's body."""
        outer = [token for i, token in self._outer(head) if i > self.after]
        return ":" in outer and bool(NAME.match(head[-1]) or head[-1] == ">")
