"""Sends requests with niquests to the address in the first argument, and trusts the authority in the file of the second.
Prints the status, the version and the length of each response. The client finds HTTP/3 by itself."""

import sys

import niquests

base, authority = sys.argv[1:3]
with niquests.Session() as session:
    for number in range(5):
        response = session.get(f"{base}/{number}", verify=authority)
        print(response.status_code, response.http_version, len(response.content))
    response = session.post(f"{base}/post", data=b"x" * 200_000, verify=authority)
    print(response.status_code, response.http_version, len(response.content))
