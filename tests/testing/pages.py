"""The project's pages, as tests read them."""
import os
import re


def read(path):
    with open(f"{os.environ['DTRAIN_SOURCE']}/{path}", encoding="utf-8") as file:
        return file.read()


def code_blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
