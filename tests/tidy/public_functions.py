"""The functions that the public headers declare, as far as a text tells it."""
import re

CONTEXT = re.compile(r"\b(namespace|class|struct|union|enum)\b(?:\s+class)?\s*([\w:]*)")


def without_templates(text):
    """Cuts out what stands in angle brackets, from the inside out."""
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>()]*(?:\([^<>()]*\)[^<>()]*)*>", "", text)
    return text


def name_of(statement, owner):
    """The function that a statement declares; None: it declares none, or a constructor, destructor or operator."""
    if re.search(r"\b(operator|friend|using|typedef|static_assert|requires)\b|~|=\s*delete", statement):
        return None
    head = re.split(r"(?<![=!<>])=(?!=)", without_templates(statement))[0]
    found = re.search(r"\b(\w+)\s*\(", head)
    if found is None or found[1] == owner or re.fullmatch(r"[A-Z_0-9]+", found[1]):
        return None
    return found[1]


def public_functions(text):
    """The names of functions outside private parts and of namespaces that are not `internal`."""
    text = re.sub(r"^\s*#.*$", "", re.sub(r"//.*", "", text), flags=re.MULTILINE)
    found, stack, statement, skipped = set(), [], "", 0
    for part in re.split(r"([{};]|\b(?:public|protected|private):(?!:))", text):
        if skipped:
            skipped += {"{": 1, "}": -1}.get(part, 0)
            continue
        if part == "{":
            context = CONTEXT.search(re.sub(r"template\s*<.*?>", "", statement))
            is_context = context is not None and "(" not in statement
            if is_context and not (context[1] == "enum" or context[2].split("::")[-1] == "internal"):
                stack.append([context[2], context[1] != "class"])
            else:
                if not is_context and (not stack or stack[-1][1]):
                    found.add(name_of(statement, stack[-1][0] if stack else ""))
                skipped = 1
            statement = ""
        elif part == "}":
            if stack:
                stack.pop()
            statement = ""
        elif part == ";":
            if not stack or stack[-1][1]:
                found.add(name_of(statement, stack[-1][0] if stack else ""))
            statement = ""
        elif part in ("public:", "protected:", "private:"):
            stack[-1][1] = part == "public:"
            statement = ""
        else:
            statement += part
    return found - {None}
