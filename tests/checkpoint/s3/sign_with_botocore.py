"""Signs requests with botocore: reads cases from a JSON file, prints the Authorization of each.

    sign_with_botocore.py CASES.json
"""
import datetime
import json
import sys

import botocore.auth
import botocore.awsrequest
import botocore.credentials


def sign(case):
    now = datetime.datetime.strptime(case["time"], "%Y%m%dT%H%M%SZ")
    botocore.auth.get_current_datetime = lambda *_, **__: now
    credentials = botocore.credentials.Credentials(case["id"], case["secret"], case["token"] or None)
    request = botocore.awsrequest.AWSRequest(
        method=case["method"], url=case["url"], headers=dict(case["headers"]),
        data=bytes.fromhex(case["body"]))
    botocore.auth.S3SigV4Auth(credentials, "s3", case["region"]).add_auth(request)
    return request.headers["Authorization"]


with open(sys.argv[1], encoding="utf-8") as file:
    for each in json.load(file):
        print(sign(each))
