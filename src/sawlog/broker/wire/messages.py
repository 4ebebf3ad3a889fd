"""Kafka's messages: the fields of each request and response, in the notation of `schema`.

The version ranges cover current clients and those of recent years.
"""

from __future__ import annotations

from typing import Final

from .schema import Api, parse_apis, parse_fields

_MESSAGES: Final = """
# --- API versions, authentication, access control lists, users and quotas
#
# Access control lists use these numbers. Resource types: 1 any, 2 topic, 3 group, 4 cluster, 5 transactional id, 6
# delegation token, 7 user. Patterns: 1 any, 2 match, 3 literal, 4 prefixed. Operations: 1 any, 2 all, 3 read, 4 write,
# 5 create, 6 delete, 7 alter, 8 describe, and more. Permissions: 1 any, 2 deny, 3 allow.
#
# SCRAM mechanisms: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512. Match types of quotas: 0 the name, 1 the default, 2 any.

ApiVersions 0-4, flexible 3+
  request client_software_name string 3+, client_software_version string 3+
  response
    error_code int16, api_keys [] { api_key int16, min_version int16, max_version int16 }
    throttle_time_ms int32 1+
    # Features tell clients which protocols to use: with transaction.version 2 they expect an epoch per transaction.
    supported_features [] 3+ tag 0 { name string, min_version int16, max_version int16 }
    finalized_features_epoch int64 3+ = -1 tag 1
    finalized_features [] 3+ tag 2 { name string, max_version_level int16, min_version_level int16 }
    zk_migration_ready boolean 3+ tag 3

SaslHandshake 0-1
  request mechanism string
  response error_code int16, mechanisms []string

SaslAuthenticate 0-2, flexible 2+
  request auth_bytes bytes
  response
    error_code int16, error_message string? = null, auth_bytes bytes
    session_lifetime_ms int64 1+

DescribeAcls 1-3, flexible 2+
  request
    resource_type_filter int8, resource_name_filter string?, pattern_type_filter int8 = 3, principal_filter string?
    host_filter string?, operation int8, permission_type int8
  response
    throttle_time_ms int32, error_code int16, error_message string? = null
    resources []
      resource_type int8, resource_name string, pattern_type int8 = 3
      acls [] { principal string, host string, operation int8, permission_type int8 }

CreateAcls 1-3, flexible 2+
  request
    creations []
      resource_type int8, resource_name string, resource_pattern_type int8 = 3
      principal string, host string, operation int8, permission_type int8
  response throttle_time_ms int32, results [] { error_code int16, error_message string? = null }

DeleteAcls 1-3, flexible 2+
  request
    filters []
      resource_type_filter int8, resource_name_filter string?, pattern_type_filter int8 = 3, principal_filter string?
      host_filter string?, operation int8, permission_type int8
  response
    throttle_time_ms int32
    filter_results []
      error_code int16, error_message string? = null
      matching_acls []
        error_code int16, error_message string? = null, resource_type int8, resource_name string, pattern_type int8 = 3
        principal string, host string, operation int8, permission_type int8

DescribeUserScramCredentials 0, flexible 0+
  request users []? { name string }
  response
    throttle_time_ms int32, error_code int16, error_message string? = null
    results []
      user string, error_code int16, error_message string? = null
      credential_infos [] { mechanism int8, iterations int32 }

AlterUserScramCredentials 0, flexible 0+
  request
    deletions [] { name string, mechanism int8 }
    upsertions [] { name string, mechanism int8, iterations int32, salt bytes, salted_password bytes }
  response throttle_time_ms int32, results [] { user string, error_code int16, error_message string? = null }

DescribeClientQuotas 0-1, flexible 1+
  request components [] { entity_type string, match_type int8, match string? }, strict boolean
  response
    throttle_time_ms int32, error_code int16, error_message string? = null
    entries []? { entity [] { entity_type string, entity_name string? }, values [] { key string, value float64 } }

# --- brokers, partitions, coordinators and replicas

Metadata 0-13, flexible 9+
  request
    # Null is all topics; in version 0 an empty list is.
    topics []?1+
      topic_id uuid 10+
      name string?10+  # Null: the topic is given by id.
    allow_auto_topic_creation boolean 4+ = true
    include_cluster_authorized_operations boolean 8-10
    include_topic_authorized_operations boolean 8+
  response
    throttle_time_ms int32 3+
    brokers [] { node_id int32, host string, port int32, rack string? 1+ = null }
    cluster_id string? 2+ = null
    controller_id int32 1+ = -1
    topics []
      error_code int16
      name string?12+ = null
      topic_id uuid 10+
      is_internal boolean 1+
      partitions []
        error_code int16, partition_index int32, leader_id int32
        leader_epoch int32 7+ = -1
        replica_nodes []int32, isr_nodes []int32
        offline_replicas []int32 5+
      topic_authorized_operations int32 8+ = NOT_ASKED
    cluster_authorized_operations int32 8-10 = NOT_ASKED
    error_code int16 13+

DescribeTopicPartitions 0, flexible 0+
  request
    topics [] { name string }, response_partition_limit int32 = 2000
    cursor struct? = null { topic_name string, partition_index int32 }
  response
    throttle_time_ms int32
    topics []
      error_code int16, name string?, topic_id uuid, is_internal boolean
      partitions []
        error_code int16, partition_index int32, leader_id int32, leader_epoch int32 = -1
        replica_nodes []int32, isr_nodes []int32, eligible_leader_replicas []int32? = null
        last_known_elr []int32? = null, offline_replicas []int32
      topic_authorized_operations int32 = NOT_ASKED
    next_cursor struct? = null { topic_name string, partition_index int32 }

DescribeCluster 0-2, flexible 0+
  request
    include_cluster_authorized_operations boolean
    endpoint_type int8 1+ = 1  # 1: brokers, 2: controllers.
    include_fenced_brokers boolean 2+
  response
    throttle_time_ms int32, error_code int16, error_message string? = null
    endpoint_type int8 1+ = 1
    cluster_id string, controller_id int32 = -1
    brokers [] { broker_id int32, host string, port int32, rack string? = null, is_fenced boolean 2+ }
    cluster_authorized_operations int32 = NOT_ASKED

FindCoordinator 0-6, flexible 3+
  request
    key string 0-3
    key_type int8 1+  # 0: a group, 1: a transactional id, 2: a share group.
    coordinator_keys []string 4+
  response
    throttle_time_ms int32 1+
    error_code int16 0-3
    error_message string? 1-3 = null
    node_id int32 0-3 = -1, host string 0-3, port int32 0-3 = -1
    coordinators [] 4+
      key string, node_id int32 = -1, host string, port int32 = -1, error_code int16, error_message string? = null

DescribeQuorum 0-2, flexible 0+
  request topics [] { topic_name string, partitions [] { partition_index int32 } }
  response
    error_code int16
    error_message string? 2+ = null
    topics []
      topic_name string
      partitions []
        partition_index int32, error_code int16
        error_message string? 2+ = null
        leader_id int32, leader_epoch int32, high_watermark int64
        current_voters []
          replica_id int32
          replica_directory_id uuid 2+
          log_end_offset int64
          last_fetch_timestamp int64 1+ = -1, last_caught_up_timestamp int64 1+ = -1
        observers []
          replica_id int32
          replica_directory_id uuid 2+
          log_end_offset int64
          last_fetch_timestamp int64 1+ = -1, last_caught_up_timestamp int64 1+ = -1
    nodes [] 2+ { node_id int32, listeners [] { name string, host string, port uint16 } }

AlterReplicaLogDirs 1-2, flexible 2+
  request dirs [] { path string, topics [] { name string, partitions []int32 } }
  response
    throttle_time_ms int32
    results [] { topic_name string, partitions [] { partition_index int32, error_code int16 } }

DescribeLogDirs 0-5, flexible 2+
  request topics []? { topic string, partitions []int32 }  # Null: all.
  response
    throttle_time_ms int32
    error_code int16 3+
    results []
      error_code int16, log_dir string
      topics []
        name string
        partitions [] { partition_index int32, partition_size int64, offset_lag int64, is_future_key boolean }
      total_bytes int64 4+ = -1, usable_bytes int64 4+ = -1
      is_cordoned boolean 5+  # True if no new replicas may be placed there.

ElectLeaders 0-2, flexible 2+
  request
    election_type int8 1+  # 0: the preferred leader, 1: any, even if records are lost.
    topic_partitions []? { topic string, partitions []int32 }, timeout_ms int32 = 60000
  response
    throttle_time_ms int32
    error_code int16 1+
    replica_election_results []
      topic string, partition_result [] { partition_id int32, error_code int16, error_message string? = null }

AlterPartitionReassignments 0-1, flexible 0+
  request
    timeout_ms int32 = 60000
    allow_replication_factor_change boolean 1+ = true
    topics []
      name string
      partitions []
        partition_index int32
        replicas []int32? = null  # Null: cancel the pending reassignment.
  response
    throttle_time_ms int32
    allow_replication_factor_change boolean 1+ = true
    error_code int16, error_message string? = null
    responses []
      name string, partitions [] { partition_index int32, error_code int16, error_message string? = null }

ListPartitionReassignments 0, flexible 0+
  request timeout_ms int32 = 60000, topics []? = null { name string, partition_indexes []int32 }
  response
    throttle_time_ms int32, error_code int16, error_message string? = null
    topics []
      name string
      partitions [] { partition_index int32, replicas []int32, adding_replicas []int32, removing_replicas []int32 }

# --- records and offsets

Produce 0-13, flexible 9+
  request
    transactional_id string? 3+ = null
    acks int16  # 0: there is no response, 1: written, -1: by all replicas that are in sync.
    timeout_ms int32
    topic_data []
      name string 0-12, topic_id uuid 13+
      partition_data []
        index int32
        records records?  # One batch.
  response
    responses []
      name string 0-12, topic_id uuid 13+
      partition_responses []
        index int32, error_code int16, base_offset int64 = -1
        log_append_time_ms int64 2+ = -1  # Only if the broker sets the time of the records.
        log_start_offset int64 5+ = -1
        record_errors [] 8+ { batch_index int32, batch_index_error_message string? = null }
        error_message string? 8+ = null
        current_leader struct 10+ tag 0 { leader_id int32 = -1, leader_epoch int32 = -1 }
    throttle_time_ms int32 1+
    node_endpoints [] 10+ tag 0 { node_id int32, host string, port int32, rack string? = null }

Fetch 4-18, flexible 12+
  request
    cluster_id string? 12+ = null tag 0
    replica_id int32 0-14 = -1
    replica_state struct 15+ tag 1 { replica_id int32 = -1, replica_epoch int64 = -1 }
    max_wait_ms int32, min_bytes int32, max_bytes int32 = INT32_MAX
    isolation_level int8  # 0: all records, 1: those of committed transactions.
    # A session names only the partitions that changed since the last request; -1 as epoch means none.
    session_id int32 7+, session_epoch int32 7+ = -1
    topics []
      topic string 0-12, topic_id uuid 13+
      partitions []
        partition int32
        current_leader_epoch int32 9+ = -1
        fetch_offset int64
        last_fetched_epoch int32 12+ = -1
        log_start_offset int64 5+ = -1
        partition_max_bytes int32
        replica_directory_id uuid 17+ tag 0  # From here on for brokers that follow another one.
        high_watermark int64 18+ = INT64_MAX tag 1
    forgotten_topics_data [] 7+ { topic string 0-12, topic_id uuid 13+, partitions []int32 }
    rack_id string 11+
  response
    throttle_time_ms int32
    error_code int16 7+, session_id int32 7+
    responses []
      topic string 0-12, topic_id uuid 13+
      partitions []
        partition_index int32, error_code int16, high_watermark int64 = -1, last_stable_offset int64 = -1
        log_start_offset int64 5+ = -1
        diverging_epoch struct 12+ tag 0 { epoch int32 = -1, end_offset int64 = -1 }
        current_leader struct 12+ tag 1 { leader_id int32 = -1, leader_epoch int32 = -1 }
        snapshot_id struct 12+ tag 2 { end_offset int64 = -1, epoch int32 = -1 }
        aborted_transactions []? { producer_id int64, first_offset int64 }  # By offset: clients rely on it.
        preferred_read_replica int32 11+ = -1
        records records?
    node_endpoints [] 16+ tag 0 { node_id int32, host string, port int32, rack string? = null }

ListOffsets 0-11, flexible 6+
  request
    replica_id int32
    isolation_level int8 2+
    topics []
      name string
      partitions []
        partition_index int32
        current_leader_epoch int32 4+ = -1
        # -1: the end, -2: the start, -3: the newest record, -4: the start on this disk, -5: the end of tiered records.
        timestamp int64
        max_num_offsets int32 0 = 1
    timeout_ms int32 10+
  response
    throttle_time_ms int32 2+
    topics []
      name string
      partitions []
        partition_index int32, error_code int16
        old_style_offsets []int64 0
        timestamp int64 1+ = -1, offset int64 1+ = -1
        leader_epoch int32 4+ = -1

OffsetForLeaderEpoch 2-4, flexible 4+
  request
    replica_id int32 3+ = -2
    topics [] { topic string, partitions [] { partition int32, current_leader_epoch int32 = -1, leader_epoch int32 } }
  response
    throttle_time_ms int32
    topics []
      topic string, partitions [] { error_code int16, partition int32, leader_epoch int32 = -1, end_offset int64 = -1 }

DeleteRecords 0-2, flexible 2+
  request
    topics [] { name string, partitions [] { partition_index int32, offset int64 } }
    timeout_ms int32
  response
    throttle_time_ms int32
    topics [] { name string, partitions [] { partition_index int32, low_watermark int64 = -1, error_code int16 } }

# --- groups: the classic protocol, administration, committed offsets, and the KIP-848 protocol

JoinGroup 0-9, flexible 6+
  request
    group_id string, session_timeout_ms int32
    rebalance_timeout_ms int32 1+ = -1
    member_id string
    group_instance_id string? 5+ = null
    protocol_type string, protocols [] { name string, metadata bytes }
    reason string? 8+ = null
  response
    throttle_time_ms int32 2+
    error_code int16, generation_id int32 = -1
    protocol_type string? 7+ = null
    protocol_name string?7+
    leader string
    skip_assignment boolean 9+  # A leader that rejoins keeps the existing assignment.
    member_id string
    members [] { member_id string, group_instance_id string? 5+ = null, metadata bytes }  # Only the leader gets them.

SyncGroup 0-5, flexible 4+
  request
    group_id string, generation_id int32, member_id string
    group_instance_id string? 3+ = null
    protocol_type string? 5+ = null, protocol_name string? 5+ = null
    assignments [] { member_id string, assignment bytes }
  response
    throttle_time_ms int32 1+
    error_code int16
    protocol_type string? 5+ = null, protocol_name string? 5+ = null
    assignment bytes

Heartbeat 0-4, flexible 4+
  request
    group_id string, generation_id int32, member_id string
    group_instance_id string? 3+ = null
  response
    throttle_time_ms int32 1+
    error_code int16

LeaveGroup 0-5, flexible 4+
  request
    group_id string
    member_id string 0-2
    members [] 3+ { member_id string, group_instance_id string? = null, reason string? 5+ = null }
  response
    throttle_time_ms int32 1+
    error_code int16
    members [] 3+ { member_id string, group_instance_id string?, error_code int16 }

ListGroups 0-5, flexible 3+
  request
    states_filter []string 4+
    types_filter []string 5+
  response
    throttle_time_ms int32 1+
    error_code int16, groups [] { group_id string, protocol_type string, group_state string 4+, group_type string 5+ }

DescribeGroups 0-6, flexible 5+
  request
    groups []string
    include_authorized_operations boolean 3+
  response
    throttle_time_ms int32 1+
    groups []
      error_code int16
      error_message string? 6+ = null
      group_id string, group_state string, protocol_type string, protocol_data string
      members []
        member_id string
        group_instance_id string? 4+ = null
        client_id string, client_host string, member_metadata bytes, member_assignment bytes
      authorized_operations int32 3+ = NOT_ASKED

DeleteGroups 0-2, flexible 2+
  request groups_names []string
  response throttle_time_ms int32, results [] { group_id string, error_code int16 }

OffsetCommit 0-10, flexible 8+
  request
    group_id string
    generation_id_or_member_epoch int32 1+ = -1  # -1 and no member: a program that is not in the group.
    member_id string 1+
    group_instance_id string? 7+ = null
    retention_time_ms int64 2-4 = -1
    topics []
      name string 0-9, topic_id uuid 10+
      partitions []
        partition_index int32, committed_offset int64
        committed_leader_epoch int32 6+ = -1
        commit_timestamp int64 1 = -1
        committed_metadata string?
  response
    throttle_time_ms int32 3+
    topics [] { name string 0-9, topic_id uuid 10+, partitions [] { partition_index int32, error_code int16 } }

OffsetFetch 0-10, flexible 6+
  request
    group_id string 0-7
    topics []?2+ 0-7 { name string, partition_indexes []int32 }  # Null: all.
    groups [] 8+
      group_id string
      member_id string? 9+ = null, member_epoch int32 9+ = -1
      topics []? { name string 0-9, topic_id uuid 10+, partition_indexes []int32 }
    require_stable boolean 7+
  response
    throttle_time_ms int32 3+
    topics [] 0-7
      name string
      partitions []
        partition_index int32, committed_offset int64
        committed_leader_epoch int32 5+ = -1
        metadata string?, error_code int16
    error_code int16 2-7
    groups [] 8+
      group_id string
      topics []
        name string 0-9, topic_id uuid 10+
        partitions []
          partition_index int32, committed_offset int64, committed_leader_epoch int32 = -1, metadata string?
          error_code int16
      error_code int16

OffsetDelete 0
  request
    group_id string
    topics [] { name string, partitions [] { partition_index int32 } }
  response
    error_code int16, throttle_time_ms int32
    topics [] { name string, partitions [] { partition_index int32, error_code int16 } }

ConsumerGroupHeartbeat 0-1, flexible 0+
  request
    group_id string, member_id string
    member_epoch int32  # 0 joins, -1 leaves, -2 leaves temporarily (a static member).
    instance_id string? = null  # From here on, null and -1 mean: as in the last heartbeat.
    rack_id string? = null, rebalance_timeout_ms int32 = -1, subscribed_topic_names []string? = null
    subscribed_topic_regex string? 1+ = null
    server_assignor string? = null, topic_partitions []? = null { topic_id uuid, partitions []int32 }
  response
    throttle_time_ms int32, error_code int16, error_message string? = null, member_id string? = null
    member_epoch int32, heartbeat_interval_ms int32
    # Null: as in the last response.
    assignment struct? = null { topic_partitions [] { topic_id uuid, partitions []int32 } }

ConsumerGroupDescribe 0-1, flexible 0+
  request group_ids []string, include_authorized_operations boolean
  response
    throttle_time_ms int32
    groups []
      error_code int16, error_message string? = null, group_id string, group_state string, group_epoch int32
      assignment_epoch int32, assignor_name string
      members []
        member_id string, instance_id string? = null, rack_id string? = null
        member_epoch int32, client_id string, client_host string, subscribed_topic_names []string
        subscribed_topic_regex string? = null
        assignment struct { topic_partitions [] { topic_id uuid, topic_name string, partitions []int32 } }
        target_assignment struct { topic_partitions [] { topic_id uuid, topic_name string, partitions []int32 } }
        member_type int8 1+ = -1  # 0: classic, 1: this protocol.
      authorized_operations int32 = NOT_ASKED

# --- topics and settings
#
# Resource types: 2 topic, 4 broker, 8 broker loggers, 16 client metrics, 32 group.

CreateTopics 2-7, flexible 5+
  request
    topics []
      name string
      num_partitions int32  # -1: as the broker is configured, or as assigned below.
      replication_factor int16, assignments [] { partition_index int32, broker_ids []int32 }
      configs [] { name string, value string? }
    timeout_ms int32 = 60000, validate_only boolean
  response
    throttle_time_ms int32
    topics []
      name string
      topic_id uuid 7+
      error_code int16, error_message string? = null
      topic_config_error_code int16 5+ tag 0
      num_partitions int32 5+ = -1, replication_factor int16 5+ = -1
      configs []? 5+ { name string, value string?, read_only boolean, config_source int8 = -1, is_sensitive boolean }

DeleteTopics 1-6, flexible 4+
  request
    topics [] 6+ { name string? = null, topic_id uuid }
    topic_names []string 0-5
    timeout_ms int32
  response
    throttle_time_ms int32
    responses [] { name string?6+ = null, topic_id uuid 6+, error_code int16, error_message string? 5+ = null }

CreatePartitions 0-3, flexible 2+
  request
    topics [] { name string, count int32, assignments []? { broker_ids []int32 } }
    timeout_ms int32, validate_only boolean
  response throttle_time_ms int32, results [] { name string, error_code int16, error_message string? = null }

DescribeConfigs 1-4, flexible 4+
  request
    resources []
      resource_type int8, resource_name string
      configuration_keys []string?  # Null: all.
    include_synonyms boolean
    include_documentation boolean 3+
  response
    throttle_time_ms int32
    results []
      error_code int16, error_message string? = null, resource_type int8, resource_name string
      configs []
        name string, value string?, read_only boolean
        # 1: the topic, 2 and 3: the brokers while they run, 4: the broker's file, 5: the default.
        config_source int8 = -1, is_sensitive boolean, synonyms [] { name string, value string?, source int8 }
        config_type int8 3+  # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
        documentation string? 3+

AlterConfigs 0-2, flexible 2+
  request
    resources [] { resource_type int8, resource_name string, configs [] { name string, value string? } }
    validate_only boolean
  response
    throttle_time_ms int32
    responses [] { error_code int16, error_message string? = null, resource_type int8, resource_name string }

IncrementalAlterConfigs 0-1, flexible 1+
  request
    resources []
      resource_type int8, resource_name string
      configs []
        name string
        config_operation int8  # 0: set, 1: delete, 2: append, 3: subtract.
        value string?
    validate_only boolean
  response
    throttle_time_ms int32
    responses [] { error_code int16, error_message string? = null, resource_type int8, resource_name string }

ListConfigResources 0-1, flexible 0+
  request resource_types []int8 1+
  response
    throttle_time_ms int32, error_code int16, config_resources [] { resource_name string, resource_type int8 1+ = 16 }

# --- idempotent producers and transactions

InitProducerId 0-5, flexible 2+
  request
    transactional_id string?  # Null: idempotent, without transactions.
    transaction_timeout_ms int32
    producer_id int64 3+ = -1, producer_epoch int16 3+ = -1
  response throttle_time_ms int32, error_code int16, producer_id int64 = -1, producer_epoch int16 = -1

AddPartitionsToTxn 0-5, flexible 3+
  request
    # From version 4 on, for brokers only; clients stay with version 3.
    transactions [] 4+
      transactional_id string, producer_id int64, producer_epoch int16, verify_only boolean
      topics [] { name string, partitions []int32 }
    v3_and_below_transactional_id string 0-3, v3_and_below_producer_id int64 0-3, v3_and_below_producer_epoch int16 0-3
    v3_and_below_topics [] 0-3 { name string, partitions []int32 }
  response
    throttle_time_ms int32
    error_code int16 4+
    results_by_transaction [] 4+
      transactional_id string
      topic_results [] { name string, results_by_partition [] { partition_index int32, partition_error_code int16 } }
    results_by_topic_v3_and_below [] 0-3
      name string, results_by_partition [] { partition_index int32, partition_error_code int16 }

AddOffsetsToTxn 0-4, flexible 3+
  request transactional_id string, producer_id int64, producer_epoch int16, group_id string
  response throttle_time_ms int32, error_code int16

TxnOffsetCommit 0-5, flexible 3+
  request
    transactional_id string, group_id string, producer_id int64, producer_epoch int16
    generation_id int32 3+ = -1, member_id string 3+, group_instance_id string? 3+ = null
    topics []
      name string
      partitions []
        partition_index int32, committed_offset int64
        committed_leader_epoch int32 2+ = -1
        committed_metadata string?
  response
    throttle_time_ms int32
    topics [] { name string, partitions [] { partition_index int32, error_code int16 } }

EndTxn 0-5, flexible 3+
  request
    transactional_id string
    # Producer id and epoch of the next transaction: with transaction.version 2, each has its own epoch.
    producer_id int64, producer_epoch int16, committed boolean
  response
    throttle_time_ms int32, error_code int16
    producer_id int64 5+ = -1, producer_epoch int16 5+ = -1

DescribeProducers 0, flexible 0+
  request topics [] { name string, partition_indexes []int32 }
  response
    throttle_time_ms int32
    topics []
      name string
      partitions []
        partition_index int32, error_code int16, error_message string? = null
        active_producers []
          producer_id int64, producer_epoch int32, last_sequence int32 = -1, last_timestamp int64 = -1
          coordinator_epoch int32, current_txn_start_offset int64 = -1

ListTransactions 0-2, flexible 0+
  request
    state_filters []string, producer_id_filters []int64
    duration_filter int64 1+ = -1
    transactional_id_pattern string? 2+ = null
  response
    throttle_time_ms int32, error_code int16, unknown_state_filters []string
    transaction_states [] { transactional_id string, producer_id int64, transaction_state string }

DescribeTransactions 0, flexible 0+
  request transactional_ids []string
  response
    throttle_time_ms int32
    transaction_states []
      error_code int16, transactional_id string, transaction_state string, transaction_timeout_ms int32
      transaction_start_time_ms int64, producer_id int64, producer_epoch int16
      topics [] { topic string, partitions []int32 }
"""

#: All supported APIs, by key.
BY_KEY: Final[dict[int, Api]] = {api.key: api for api in parse_apis(_MESSAGES)}

# The opaque bytes that consumers send in JoinGroup and SyncGroup, each after an int16 with its version. A broker passes
# these on unread; it parses them, as tools do, only to describe a group.

#: Versions of both.
VERSIONS: Final = range(4)

SUBSCRIPTION: Final = parse_fields("""
topics []string
user_data bytes? = null
owned_partitions [] 1+ { topic string, partitions []int32 }
generation_id int32 2+ = -1
rack_id string? 3+ = null
""")

ASSIGNMENT: Final = parse_fields("""
assigned_partitions [] { topic string, partitions []int32 }
user_data bytes? = null
""")
