"""Who talks to a broker: TLS, certificates and passwords.

`tls` has the certificate, `listener` accepts encrypted connections, `distinguished` names the owner of a certificate.
`scram` and `plain` are the mechanisms, `users` are stored, `known` are those that a running broker has in memory.
`session` is what one connection has proved so far, `guard` what all connections of a broker share. `rules` says which
settings go together.
"""
