"""Tokens and passwords in texts of anybody."""

from __future__ import annotations

import time

import pytest

from kdp.hardware.snapshot.archive import FileEntry, Snapshot
from kdp.hardware.snapshot.redact import KINDS, redact
from kdp.hardware.snapshot.tokens import PERSONAL, RULES, hiding, shown, unreadable, without, without_values


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=xyzzy", "password=***"),
        ("the password is xyzzy, as ever", "the password is ***, as ever"),
        ('{"apiKey": "a b c", "n": 1}', '{"apiKey": "***", "n": 1}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("https://me:secret1@example.com/x", "https://me:***@example.com/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----***-----END"),
        ("token: null", "token: null"),
        ("wrong passphrase: correct horse battery staple, try again", "wrong passphrase: ***, try again"),
        ("ERROR vendor: password: correct horse battery staple\nnext", "ERROR vendor: password: ***\nnext"),
        ("Unhealthy (token: correct horse battery)", "Unhealthy (token: ***)"),
        ('the "secret: correct horse" of w0', 'the "secret: ***" of w0'),
        ("count=4 at 10.0.0.1:8080 is fine", "count=4 at 10.0.0.1:8080 is fine"),
    ],
)
def test_a_token_is_replaced_where_it_stands(text: str, left: str) -> None:
    assert without({"a": text.encode()}, ())[0] == {"a": left.encode()}


def test_what_one_text_gives_away_is_replaced_in_the_others_as_a_whole_word() -> None:
    texts = {"a": b"pwd: swordfish", "b": b"swordfish! SWORDFISH, swordfishes", "c": b"given: opensesame"}
    found, secrets = without(texts, (b"opensesame", b"abc"))
    assert found == {"a": b"pwd: ***", "b": b"***! ***, swordfishes", "c": b"given: ***"}
    assert secrets == {b"swordfish", b"opensesame", b"abc"}


def test_values_are_known_by_their_keys() -> None:
    document = {"a": [{"token": "x1", "n": 1}], "passwords": {"of": ["y2", 33]}, "secret": None, "key": "xid-79"}
    left = {"a": [{"token": "***", "n": 1}], "passwords": {"of": ["***", "***"]}, "secret": None, "key": "xid-79"}
    assert without_values(document) == left
    assert without_values({"env": [{"name": "DB_PASS", "value": "Zx81kPq0"}]}) == {
        "env": [{"name": "DB_PASS", "value": "***"}]
    }


def test_a_parameter_is_secret_by_its_name_or_as_free_text() -> None:
    given = {"license": "plain", "count": "4", "pin": "4711", "mode": "fast", "file": "/etc/a.pem", "note": "Ab-12-cd"}
    more = {"nested": {"list": ["free text 9", 17, True, None]}, "at": "0000:65:00.0", "card": "card-7f3a"}
    assert unreadable({**given, **more}, {b"card-7f3a"}) == [b"plain", b"4711", b"Ab-12-cd", b"free text 9"]


@pytest.mark.parametrize(
    "text",
    [
        "tool --key=SECRETX1 --verbose", "tool --pass SECRETX1 -v", "tool --token SECRETX1", "DB_PASS=SECRETX1 x",
        "pw=SECRETX1 and more", "creds=SECRETX1", "passcode SECRETX1", "curl -u me:SECRETX1 https://h/",
        "mysql -pSECRETX1 --host db", "X-Auth: SECRETX1", "Authorization: token SECRETX1",
        "Authorization: Negotiate SECRETX1==", "Authorization: Digest username=\"me\", response=\"SECRETX1\"",
        "Cookie: a=b; sid=SECRETX1", "https://h/v1?x=1&sig=SECRETX1%3D&y=2", "https://h/?X-Amz-Signature=SECRETX1",
        "https://me:p@ss:SECRETX1@h/", "redis://:SECRETX1@h:6379", 'password="quo\\"ted SECRETX1"',
        "{'password': 'two SECRETX1 words'}", '{"auth": "SECRETX1=="}', '{"a": {"Authorization": "token SECRETX1"}}',
        '2026-03-04T09:00:00Z stdout F {"m": "X-Auth: SECRETX1", "n": 1}', "licence key is SECRETX1",
        "client-key-data: SECRETX1", "vendor.io/licence: SECRETX1", "hvs.CAESISECRETX1", "npm_abcdefSECRETX1",
        "dckr_pat_abcSECRETX1", "AIzaSyabcdefSECRETX1", "https://hooks.slack.com/services/T0/B0/SECRETX1",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\nSECRETX1", "key=SECRETX1, state=open", "the apiKey: SECRETX1",
        "aws wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXASECRETX1", '{\\n\\"pw\\": \\"SECRETX1\\"', "token=b'SECRETX1'",
        "session_id=SECRETX1", "signingKey=SECRETX1", "https://h/db?sslmode=off&key=SECRETX1",
        "DSN=postgres://u:SECRETX1@h/db?sslmode=off", "password: 'two words SECRETX1'",
        "the token was SECRETX1", "secret 'SECRETX1' rejected", 'token \\"SECRETX1\\" is old',
        "SECRETX1-AB12-CD34-EF56",
        "dctrl_secret=DHHC-1:00:SECRETX1abcdefgh:", "NVMeTLSkey-1:01:SECRETX1abcdefgh:",
    ],
)  # fmt: skip
def test_no_secret_is_left_in_any_notation(text: str) -> None:
    found, _ = without({"log": text.encode(), "elsewhere": b"told SECRETX1!"})
    assert b"SECRETX1" not in found["log"]
    assert b"***" in found["log"]


@pytest.mark.parametrize(
    "text",
    [
        "authentication failed: Forbidden", "device w0 is Unhealthy (key=xid-79)", "XID 79: GPU has fallen off the bus",
        "the token is missing", "token: null", "error: secret not found", "pass=3 fail=2", "auth: basic",
        "GPU-9f86d081-884c-4d65-9a2f-eaa0c55ad015 of 0000:65:00.0", "key=0000:65:00.0", "bypass=Ab12Cd34",
        "config hash sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "keyboard: Ab12Cd34",
        "token-file=/var/run/secrets/kubernetes.io/serviceaccount/token", "--kubeconfig /etc/kubernetes/admin.conf",
        "pci:v000010DEd00002204sv000010DEsd00001467bc03sc00i00", "licence: Apache-2.0", "Basic authentication failed",
        "/sys/devices/pci0000:00/0000:00:1c.0/PNP0C0A/driver", "registry.example.com:5000/img:v1.2@sha256:ab12",
        "ssh://git@host/x", "exit code=137", "sort-key=name", "say --metrics on, or give --http :8080",
        "vendor: token: must be set", "KDP_SET_TOKEN: there is no parameter 'token'", "error: password: not set in w",
        "kubelet.sock answered in 0.25 s", "https://vendor.example.com/v1?count=12",
    ],
)  # fmt: skip
def test_what_an_issue_needs_stays(text: str) -> None:
    assert without({"log": text.encode()}) == ({"log": text.encode()}, set())


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ask jane.doe+gpu@mail.example.com now", "ask *** now"),
        ("dial tcp 10.1.2.3:443: refused", "dial tcp ***:443: refused"),
        ("at [fd00:12::7]:443 and 2001:db8::1", "at [***]:443 and ***"),
        ("at 127.0.0.1:8080, 0.0.0.0, and ::1", "at 127.0.0.1:8080, 0.0.0.0, and ::1"),
        (
            "driver 535.104.05 of 0000:65:00.0, 1.2.3.4.5, v1.37.1",
            "driver 535.104.05 of 0000:65:00.0, 1.2.3.4.5, v1.37.1",
        ),
        ("std::vector and 10de::2204", "std::vector and 10de::2204"),
    ],
)
def test_people_and_networks_do_not_leave_the_machine(text: str, left: str) -> None:
    assert without({"log": text.encode()}, rules=PERSONAL)[0] == {"log": left.encode()}


def test_a_rule_hid_a_part_of_a_known_secret_and_left_the_rest() -> None:
    found, _ = without({"log": b"got Pw12;Xy34zz=4 and token=Pw12"}, [b"Pw12;Xy34zz"])
    assert found == {"log": b"got ***=4 and token=***"}


def test_a_public_name_is_no_secret_unless_a_password_is_so_named() -> None:
    texts = {"a": b"key=mlx5_0a1 at card-7f3a9", "b": b"key=Zx81kPq0"}
    assert without(texts, public={b"mlx5_0a1", b"card-7f3a9"})[0] == {"a": texts["a"], "b": b"key=***"}
    assert without({"a": b"password=mlx5_0a1"}, public={b"mlx5_0a1"})[0] == {"a": b"password=***"}


def test_texts_that_are_not_told_give_their_secrets_away() -> None:
    hidden = [b'{"REGISTRY_TOKEN": "opensesame", "DSN": "db://u:Pw12@h"}', b"users:\n- token: Kube77\n"]
    found, _ = without({"log": b"opensesame, Pw12, and Kube77"}, hidden=hidden)
    assert found == {"log": b"***, ***, and ***"}


def test_the_scheme_of_a_header_is_no_secret() -> None:
    texts = {"log": b"Authorization: token Abc12345\ntool --token Xyz98765 ?access_token=Qwe13579 by token"}
    found, secrets = without(texts)
    assert found["log"] == b"Authorization: token ***\ntool --token *** ?access_token=*** by token"
    assert secrets == {b"Abc12345", b"Xyz98765", b"Qwe13579"}


def test_the_first_word_behind_a_label_is_looked_for_elsewhere() -> None:
    texts = {"a": b"password: hunter2horse was refused by w0", "b": b"given hunter2horse, and w0 was refused"}
    assert without(texts)[0] == {"a": b"password: ***", "b": b"given ***, and w0 was refused"}


def test_the_reason_of_an_error_that_ends_with_a_name_stays_but_for_its_first_word() -> None:
    text = b"cannot read the token: connection refused by 10.0.0.1"
    assert without({"a": text})[0] == {"a": b"cannot read the token: *** refused by 10.0.0.1"}


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("token", "Kx9-hunter2", "'***'"), ("token", ["Kx9-hunter2"], "['***']"), ("api_key", {"a": 1}, "{'a': '***'}"),
        ("pin", [4711471], "['***']"), ("key", "many", "'many'"), ("count", {1: "many"}, "{'1': 'many'}"),
        ("url", "https://me:hunter2@h", "'https://me:***@h'"), ("login", {"password": [1]}, "{'password': ['***']}"),
        ("count", None, "None"), ("token", None, "None"),
    ],
)  # fmt: skip
def test_an_error_shows_a_value_without_its_secrets(name: str, value: object, left: str) -> None:
    assert shown(name, value) == left


def test_what_others_say_of_a_value_is_shown_without_it() -> None:
    text = "bad literal: 'Kx9-hunter2'; for example 4"
    assert hiding(text, {"token": "Kx9-hunter2", "count": 4}) == "bad literal: '***'; for example 4"
    assert hiding(text, {"tokens": ("a", "Kx9-hunter2")}) == "bad literal: '***'; for example 4"
    assert hiding(text, {"count": "Kx9-hunter2"}) == text


def test_each_rule_says_what_it_finds_and_keeps() -> None:
    assert all(rule.what and rule.kept for rule in RULES)
    assert len({rule.what for rule in RULES}) == len(RULES)


_LONG = 128 << 10


@pytest.mark.parametrize(
    "text",
    [
        b"a" * _LONG, b"key=" * (_LONG // 4), b"token " * (_LONG // 6), b'key="' * (_LONG // 5), b'\\"' * (_LONG // 2),
        b"://a:" * (_LONG // 5), b"://" + b"a:" * (_LONG // 2), b"-----BEGIN PRIVATE KEY-----" * (_LONG // 27),
        b"mysql " * (_LONG // 6), b"aA1" * (_LONG // 3), b"token" + b" " * _LONG, b"sk-" * (_LONG // 3),
        b"key=" + b"a." * (_LONG // 2), b"[{}]\n" * (_LONG // 5), b"authorization: " * (_LONG // 15),
        b"token: " * (_LONG // 7), b"passphrase: a" + b" a" * (_LONG // 2), b"passphrase: " + b" " * _LONG,
        b"mysql-" * (_LONG // 6), b"mysql " + b"a " * (_LONG // 2), b"AB12-" * (_LONG // 5), b"1." * (_LONG // 2),
        b"a@" * (_LONG // 2), b"a." * (_LONG // 2) + b"@", b"fe80:" * (_LONG // 5), b"token '" + b"a" * _LONG,
        b" ".join(b"pw=a%dZ%dq" % (number, number * 7919) for number in range(_LONG // 16)),
    ],
)  # fmt: skip
def test_no_line_of_a_log_takes_long(text: bytes) -> None:
    """A pattern that looks at each pair of places would take hours."""
    snapshot = Snapshot(files={"/log": FileEntry(text)})
    began = time.process_time()
    redact(snapshot, KINDS)
    assert time.process_time() - began < 30


@pytest.mark.parametrize(
    "text",
    [b"ERROR vendor: password=hunter2horse was refused", b"a=b=c: token=hunter2horse"],
)
def test_a_secret_behind_another_name_was_left(text: bytes) -> None:
    """A line of a log begins with the logger's name and a colon."""
    replaced, found = without({"log": text}, ())
    assert b"hunter2horse" not in replaced["log"]
    assert b"***" in replaced["log"]
    assert found == {b"hunter2horse"}
    assert without({"log": b"kdp: state: connected, a=b=c"}, ())[0] == {"log": b"kdp: state: connected, a=b=c"}
