"""Version 1 of the contracts: generated stubs, never edited by hand.

    python -m grpc_tools.protoc -I proto --python_out=proto --grpc_python_out=proto --pyi_out=proto \\
        proto/pointsman/v1/*.proto
"""
