"""Sends requests with curl's HTTP/3 to the address in the first argument, and trusts the authority in the file of the
second. Prints the status, the version and the length of each response."""

import sys

from curl_cffi import CurlHttpVersion, requests

base, authority = sys.argv[1:3]
with requests.Session(verify=authority, http_version=CurlHttpVersion.V3ONLY) as session:
    for number in range(5):
        response = session.get(f"{base}/{number}")
        print(response.status_code, response.http_version, len(response.content))
    response = session.post(f"{base}/post", data=b"x" * 200_000)
    print(response.status_code, response.http_version, len(response.content))
