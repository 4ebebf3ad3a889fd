"""The owner of a certificate as text: what Java calls `X500Principal.getName()`."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from sawlog.broker.security.tls import name_of
from sawlog.errors import AuthenticationFailed

from ...looping import for_each

KEY = ec.generate_private_key(ec.SECP256R1())
CN, ORG, UNIT, C = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.COUNTRY_NAME,
)


def certificate(*parts: tuple[x509.NameAttribute, ...]) -> bytes:
    """Return a self-signed certificate in DER."""
    name = x509.Name([x509.RelativeDistinguishedName(each) for each in parts])
    issuer = x509.Name([x509.NameAttribute(CN, "somebody else")])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)


def one(oid: ObjectIdentifier, value: str, kind: _ASN1Type | None = None) -> x509.NameAttribute:
    return x509.NameAttribute(oid, value, kind)


NAMES = {
    "CN=ann,OU=billing,O=example,C=DE": [
        (one(C, "DE"),),
        (one(ORG, "example"),),
        (one(UNIT, "billing"),),
        (one(CN, "ann"),),
    ],
    "CN=ann": [(one(CN, "ann"),)],
    "": [],
    "UID=a1,DC=example,DC=org": [
        (one(NameOID.DOMAIN_COMPONENT, "org"),),
        (one(NameOID.DOMAIN_COMPONENT, "example"),),
        (one(NameOID.USER_ID, "a1"),),
    ],
    "STREET=Main,ST=Bavaria,L=Munich": [
        (one(NameOID.LOCALITY_NAME, "Munich"),),
        (one(NameOID.STATE_OR_PROVINCE_NAME, "Bavaria"),),
        (one(NameOID.STREET_ADDRESS, "Main"),),
    ],
    r"O=Smith\, Sons \+ Co\; \"x\"": [(one(ORG, 'Smith, Sons + Co; "x"'),)],
    r"CN=\#a\\b\<c\>\=d": [(one(CN, r"#a\b<c>=d"),)],
    r"CN=\ \ a b\ \ ": [(one(CN, "  a b  "),)],
    r"CN=\ ": [(one(CN, " "),)],
    "CN=Jürgen Größe 木": [(one(CN, "Jürgen Größe 木"),)],
    "CN=wide 木": [(one(CN, "wide 木", _ASN1Type.BMPString),)],
    # RFC 2253 has no word for these: the number, and the bytes as they are.
    "1.2.840.113549.1.9.1=#160b616e6e406578616d706c65": [(one(NameOID.EMAIL_ADDRESS, "ann@example"),)],
    "2.5.4.5=#130137": [(one(NameOID.SERIAL_NUMBER, "7"),)],
}


@for_each("expected", NAMES)
def test_the_subject_is_written_as_kafka_writes_it(expected: str) -> None:
    assert name_of(certificate(*NAMES[expected])) == expected


def test_parts_that_belong_together_are_joined() -> None:
    found = name_of(certificate((one(ORG, "example"),), (one(CN, "ann"), one(NameOID.USER_ID, "a1"))))
    assert found in ("CN=ann+UID=a1,O=example", "UID=a1+CN=ann,O=example")  # a set, sorted by its bytes


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="cannot be parsed"):
        name_of(data)


WHOLE = certificate(*NAMES["CN=ann,OU=billing,O=example,C=DE"])


@given(st.integers(0, 2**16), st.integers(1, 255))
def test_a_damaged_certificate_gives_a_name_or_is_refused(position: int, change: int) -> None:
    whole = bytearray(WHOLE)
    whole[position % len(whole)] ^= change
    try:
        assert isinstance(name_of(bytes(whole)), str)
    except AuthenticationFailed:
        pass
