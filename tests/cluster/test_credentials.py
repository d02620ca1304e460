from datetime import UTC, datetime, timedelta

from cryptography import x509

from scalelab.cluster.node_options import run_security


def test_a_clock_that_is_behind_or_ahead_shuts_nobody_out() -> None:
    role = run_security().get_tls_config_for_role("worker")
    certificate = x509.load_pem_x509_certificate(role["cert"].encode())
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(days=365)
    assert certificate.not_valid_after_utc > now + timedelta(days=365)


def test_every_run_has_its_own_key() -> None:
    first, second = (run_security().get_tls_config_for_role("client") for _ in "12")
    assert first["key"] != second["key"]
    assert first["ca_file"] != second["ca_file"]
