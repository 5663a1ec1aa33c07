package org.json

class JSONObject(text: String) {
    fun getJSONArray(name: String): JSONArray = TODO()

    fun getJSONObject(name: String): JSONObject = TODO()

    fun getString(name: String): String = TODO()

    fun optBoolean(name: String): Boolean = TODO()
}

class JSONArray {
    fun length(): Int = TODO()

    fun getJSONObject(index: Int): JSONObject = TODO()
}
