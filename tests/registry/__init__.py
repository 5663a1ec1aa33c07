"""Packages in real registries, on this machine's loopback interface only.

What may go wrong, and the tests of it:

| fault | test |
|---|---|
| the registry dies in the middle of an upload | test_faults: test_a_registry_that_dies_in_an_upload_gets_the_rest |
| the connection breaks in the middle of an upload | test_faults: test_a_broken_upload_continues_where_it_broke |
| a token ends in the middle of an upload | test_faults: test_a_token_that_ends_is_renewed_without_a_server |
| the connection breaks in the middle of a download | test_faults: test_a_broken_download_continues_where_it_broke |
| a pull fails after some files have arrived | test_faults: test_a_failed_pull_continues_where_it_ended |
| a pull is killed after some files have arrived | test_faults: test_a_killed_pull_continues_where_it_ended |
| Ctrl-C during a wait | test_faults: test_an_interrupt_ends_a_wait_at_once |
| a file of a pull cannot be put in its place | test_faults: test_programs_appear_together_or_not_at_all |
| a blob is truncated, flipped, longer or empty | test_faults: test_a_damaged_blob_is_refused |
| a manifest has another digest than was asked for | test_faults: test_a_manifest_with_another_digest_is_refused |
| an image index has wrong digests, sizes or kinds | test_faults: test_an_index_that_lies_is_refused |
| a manifest names another digest than the index | test_faults: test_a_pushed_package_that_lies_is_refused |
| a manifest and an index name a path with `..` | test_faults: test_a_pushed_package_that_lies_is_refused |
| a tag moves between two reads | test_faults: test_a_tag_that_moves_while_it_is_pulled_gives_one_package |
| 401 and 403, for each method | test_faults: test_a_refusal_is_told |
| 429, 500, 502, 503 or 504 twice, and then 200 | test_faults: test_errors_that_pass_are_waited_out |
| 429 with Retry-After | test_faults: test_retry_after_is_obeyed |
| 429 with a Retry-After of a day | test_faults: test_a_long_retry_after_has_a_limit |
| 400, 404, 410 or 500 each time | test_faults: test_errors_that_stay_are_told |
| a body that drips | test_faults: test_a_body_that_drips_is_given_up |
| a registry that accepts a connection and says nothing | test_faults: test_a_registry_that_says_nothing_is_given_up |
| a full disk | test_faults: test_a_full_disk_leaves_nothing |
| two pulls into one directory | test_faults: test_two_pulls_into_one_directory_give_one_of_both |
| two pushes of one tag | test_faults: test_two_pushes_of_one_tag_give_one_of_both |
| a push that fails at each step | test_faults: test_a_push_that_fails_moves_no_tag |
| a statement that was removed | test_registry: test_a_policy_finds_that_a_statement_is_gone |
| no signature, or one of another key | test_signatures: test_a_signed_package_is_accepted_and_others_are_not |
"""
