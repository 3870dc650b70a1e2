"""Texts that tokenizers get wrong."""

from __future__ import annotations

CORPUS = (
    "",
    " ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "don't I'LL we've they'RE it's 's 'S",
    "  leading and trailing  ",
    "tabs\tand\nnewlines\r\nand\n\n\nmore\r\r",
    " \n \t \n  x",
    "a" * 500,
    " " * 300,
    "\n" * 50,
    "x = [i**2 for i in range(n) if not f(i)]  # note",
    "def f(a: int) -> str:\n    return f'{a!r:>{w}}'\n",
    '<div class="a">&nbsp;</div>',
    "SELECT * FROM t WHERE a='b';--",
    "\u00e9\u00e8 e\u0301 \u212b \u1e9b\u0323 na\u00efve",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u4e2d\u6587\u3001\ud55c\uad6d\uc5b4",
    "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 "
    "\u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea "
    "\U0001f44d\U0001f3fd\u2764\ufe0f",
    "\u200b\u200d\ufeff\u00a0\u2003\u3000\u2028\u2029",
    "\x00\x01\x7f\x1b[0m",
    "\ufffd\ufffe\uffff\U0010ffff",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_start|> <|im_end|>x<|endoftext|>",
    "<|im_start <|im_end|> <|endof text|> <repo_name>a<file_sep>",
    "word" + "\u0301" * 40,
    "MiXeD CaSe sNaKe_case-kebab/path\\to.file@host",
    "\u2581\u2581under\u2581score \u0120the \u010a",
    "$%^&*()_+{}|:<>?~`-=[];',./",
)

# Numbers are split digit by digit, which is where a rule for another model would differ.
NUMBERS = (
    "a  1",
    "    12 apples",
    "\n\n1. first\n\n2. second",
    "x = 12345\n\n\n67",
    "3.14159 1,000,000 0x1F 1e-9 v2.0.1",
    "\u00bd\u00b2\u00b3 \u0663\u0664 \u0967\u0968 \u2167 \u2460",
    " " * 50 + "1",
)
