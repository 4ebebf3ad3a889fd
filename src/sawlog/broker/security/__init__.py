"""Authenticate and authorize the clients of a broker.

`tls` accepts encrypted connections, reloads certificates and names their owners. `credentials` stores users and caches
them in a running broker. `authentication` implements PLAIN and SCRAM, and holds the state of one connection. `acls`
decides what a set of access control lists allows, and `authorizer` applies the lists of a store. What each Kafka API
requires stands at its handler.
"""
