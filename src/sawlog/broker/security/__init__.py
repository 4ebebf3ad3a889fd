"""Authentication and authorization of the broker's clients.

`tls` accepts encrypted connections, reloads certificates and names their owners. `mechanisms` implements PLAIN and
SCRAM. `credentials` stores users and caches them in a running broker. `authentication` holds the state of one
connection, and what all connections share. `acls` decides what a set of access control lists allows, `authorizer`
applies the lists of a store, and `api_requirements` states what each Kafka API requires.
"""
