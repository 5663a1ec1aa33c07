package com.example.mlp

import android.content.Context
import java.io.File
import java.security.DigestInputStream
import java.security.MessageDigest
import org.json.JSONObject

/**
 * Copies a program from the assets to a file, because `Module.load` takes a path and assets have none.
 *
 * The name of the file has the digest, so an update of the app never runs the program of the version before it.
 *
 * @throws IllegalStateException if `Module` cannot run this program, or its bytes are not those of the index
 */
fun installedProgram(context: Context, name: String): File {
    val index = JSONObject(context.assets.open("$name.index.json").bufferedReader().use { it.readText() })
    val artifacts = index.getJSONArray("artifacts").let { all -> List(all.length()) { all.getJSONObject(it) } }
    check(artifacts.none { it.getString("kind") == "named_data" }) {
        "$name has named data (.ptd), which org.pytorch.executorch.Module cannot load: build it without `named_data`"
    }
    check(!index.getJSONObject("inputs").getJSONObject("plan").optBoolean("share_mutable_buffers")) {
        "the methods of $name share mutable buffers, and org.pytorch.executorch.Module gives each method its own"
    }
    val digest = artifacts.single { it.getString("kind") == "program" }.getString("sha256")
    val file = File(context.filesDir, "$name-$digest.pte")
    if (!file.exists()) {
        context.filesDir.listFiles { each -> each.name.startsWith("$name-") }?.forEach { it.delete() }
        copy(context, "$name.pte", digest, file)
    }
    return file
}

/** Copies an asset if it has this digest. The file gets its name when it is whole. */
private fun copy(context: Context, asset: String, digest: String, file: File) {
    val partial = File(context.filesDir, "${file.name}.partial")
    val sha256 = MessageDigest.getInstance("SHA-256")
    DigestInputStream(context.assets.open(asset), sha256).use { from -> partial.outputStream().use { from.copyTo(it) } }
    check(sha256.digest().joinToString("") { "%02x".format(it) } == digest) { "$asset is not the file of its index" }
    check(partial.renameTo(file)) { "cannot rename $partial" }
}
