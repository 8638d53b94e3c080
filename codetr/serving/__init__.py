"""The server of `codetr serve`: a web application before the replicas of a network, one on each GPU.

    client -> proxy -> gateway: limits, checks of headers, answers -> replica: decode, batch, detect

Ray Serve runs both as processes. `web` and `uploads` know nothing of Ray.
"""
